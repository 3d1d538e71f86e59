// The types of `vendor/tables.js`.

interface Source {
  byteLength: number;
  slice(start: number, end?: number): Promise<ArrayBuffer>;
}

type Decompress = (input: Uint8Array, size: number) => Uint8Array;

interface Element {
  name: string;
  type?: string;
  logical_type?: { type: string };
  converted_type?: string;
}

interface Chunk {
  meta_data?: { path_in_schema: string[]; total_compressed_size: bigint };
}

interface Metadata {
  num_rows: bigint;
  row_groups: { num_rows: bigint; columns: Chunk[] }[];
}

export function parquetMetadataAsync(file: Source): Promise<Metadata>;
export function parquetSchema(metadata: Metadata): { children: { element: Element; children: unknown[] }[] };
export function parquetReadObjects(options: {
  file: Source;
  metadata: Metadata;
  columns: string[];
  rowStart: number;
  rowEnd: number;
  compressors: Record<string, Decompress>;
}): Promise<Record<string, unknown>[]>;
export function snappyUncompress(input: Uint8Array, output: Uint8Array): void;
export const decompressGzip: Decompress;
export const decompressLz4: Decompress;
export const decompressLz4Raw: Decompress;
export function decompressZstd(input: Uint8Array, output: Uint8Array): Uint8Array;
export function parse(
  text: string,
  options: { preview: number; skipEmptyLines: boolean; delimitersToGuess: string[] },
): { data: string[][]; meta: { delimiter: string } };
