"""GET /v1/cluster: the gateways that share the record, for administrators and auditors."""

from __future__ import annotations

from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, READS, Answer, operation
from cellgate.identity.principal import Permission
from cellgate.wire.answers import ClusterModel, NodeModel
from cellgate.wire.base import Query


class ClusterHandler(BaseHandler):
    """The nodes of the cluster."""

    @operation(
        "get_cluster",
        "List the gateways that share the record",
        Answer(200, "All nodes, as this one saw them at its last sign of life.", {JSON: ClusterModel}),
        description="None if this gateway is the only one of its record. For administrators and auditors"
        " whose token reaches all sessions.",
        query=Query,
        errors=READS,
        needs=Permission.READ,
    )
    async def get(self) -> None:
        self.login.check_for_all("the gateways of the cluster")
        cluster = self.services.storage.cluster
        known = [] if cluster is None else [*cluster.membership.nodes.values()]
        nodes = [
            NodeModel(
                node=node.id,
                url=node.url,
                state=node.state,
                capacity=node.load.capacity,
                used=node.load.used,
                warm=node.load.warm,
                beat_at=node.beat_at.isoformat(timespec="milliseconds"),
            )
            for node in known
        ]
        self.answer(ClusterModel(nodes=nodes, takeovers=sum(node.takeovers for node in known)))
