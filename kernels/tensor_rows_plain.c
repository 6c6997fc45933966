/* tensor_rows_plain.c: the row loops for any machine. */
#define ROW_TABLE row_plain
#include "tensor_rows.inc"
