/* Spoils a ring behind the library's back, by netmap's layout: the switch says so, and toklat_reset mends it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <toklat.h>

#define CHECK(is_so)                                                                                \
    do {                                                                                            \
        if (!(is_so)) {                                                                             \
            fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #is_so);                       \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

/* Where the memory begins that `inside` lies in. */
static unsigned char *mapping(const void *inside)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    uintptr_t from, to;

    CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps) != NULL)
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &from, &to) == 2 && from <= (uintptr_t)inside && (uintptr_t)inside < to) {
            fclose(maps);
            return (unsigned char *)from;
        }
    CHECK(!"no mapping");
    return NULL;
}

/* Sends a frame to all, over a buffer that does not exist if `spoilt`. */
static void send_frame(struct toklat_port *port, int spoilt)
{
    struct toklat_slot slot;
    int64_t ring;

    CHECK(toklat_reserve(port, 0, &slot, 1) == 1);
    memset(slot.data, 0xff, 60);
    memset((unsigned char *)slot.data + 6, 2, 6);
    slot.length = 60;
    CHECK(toklat_commit(port, 0, &slot, 1) == 0);
    if (spoilt) {
        unsigned char *interface = mapping(slot.data);
        memcpy(&ring, interface + 56, sizeof(ring)); /* netmap_if.ring_ofs[0] */
        memset(interface + ring + 256, 0xff, 4);     /* netmap_ring.slot[0].buf_idx */
    }
    toklat_flush(port);
}

int main(void)
{
    struct toklat_stats stats = TOKLAT_STATS_INIT;
    struct toklat_port *port, *other;
    struct toklat_frame frame;

    CHECK(toklat_open("vale0:fault", NULL, &port) == 0 && toklat_open("vale0:other", NULL, &other) == 0);
    send_frame(port, 1);
    while (toklat_wait(port, TOKLAT_READ, 1) >= 0)
        ;
    CHECK(toklat_check(port) == -EBADMSG && toklat_flush(port) == -EBADMSG);
    CHECK(strstr(toklat_message(port), "toklat_reset") != NULL);
    CHECK(toklat_stats(port, &stats) == 0 && stats.fault == TOKLAT_FAULT_BAD_BUFFER);
    CHECK(toklat_reset(port) == 0 && toklat_check(port) == 0);
    CHECK(toklat_stats(port, &stats) == 0 && stats.fault == 0 && stats.resets == 1);
    send_frame(port, 0);
    CHECK(toklat_wait(other, TOKLAT_READ, 30000) == TOKLAT_READ && toklat_receive(other, 0, &frame, 1) == 1);
    CHECK(frame.length == 60);
    toklat_close(port);
    toklat_close(other);
    return 0;
}
