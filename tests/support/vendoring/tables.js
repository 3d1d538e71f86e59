// What reads the first rows of a file: Papa Parse of a CSV file, hyparquet of a Parquet file. No decompressor is WebAssembly,
// which the page's policy does not allow: hyparquet-compressors' own index would bring one.
import { gunzip } from "hyparquet-compressors/src/gzip.js";
import Papa from "papaparse";

export { parquetMetadataAsync, parquetReadObjects, parquetSchema, snappyUncompress } from "hyparquet";
export { decompressLz4, decompressLz4Raw } from "hyparquet-compressors/src/lz4.js";
export { decompress as decompressZstd } from "fzstd";
export const decompressGzip = (input, size) => gunzip(input, new Uint8Array(size));
export const { parse } = Papa;
