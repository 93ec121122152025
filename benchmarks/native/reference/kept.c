/* Fresh memory that stays until the end, in blocks: what a receiver that keeps its data allocates. */
#include "zcref.h"

#include <stdlib.h>

void *kept_room(struct kept *kept, size_t *room)
{
    if (kept->count == 0 || kept->used == kept->block_bytes) {
        if (kept->count == kept->room) {
            kept->room = kept->room ? 2 * kept->room : 64;
            kept->blocks = realloc(kept->blocks, kept->room * sizeof *kept->blocks);
        }
        void *block = malloc(kept->block_bytes);
        if (block == NULL || kept->blocks == NULL)
            die("out of memory");
        kept->blocks[kept->count++] = block;
        kept->used = 0;
    }
    *room = kept->block_bytes - kept->used;
    return (char *)kept->blocks[kept->count - 1] + kept->used;
}

void kept_release(struct kept *kept)
{
    for (size_t i = 0; i < kept->count; i++)
        free(kept->blocks[i]);
    free(kept->blocks);
}
