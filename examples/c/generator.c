/* Sends frames and counts the answers: generator PORT [FRAMES], for ever or until so many have come back (see echo.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <toklat.h>

#define BATCH 64

static unsigned char header[14] = {
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, /* to all */
    0x02, 0x00, 0x00, 0x01, 0x00, 0x00, /* from a local address: main completes it */
    0x88, 0xb5                          /* an EtherType for experiments */
};

/* Fills up to a batch of free slots where they lie. */
static int send_batch(struct toklat_port *port)
{
    struct toklat_slot slots[BATCH];
    int lent = toklat_reserve(port, 0, slots, BATCH);

    for (int i = 0; i < lent; i++) {
        memset(slots[i].data, 0, 60);
        memcpy(slots[i].data, header, sizeof(header));
        slots[i].length = 60;
    }
    return lent > 0 ? toklat_commit(port, 0, slots, lent) : lent;
}

/* How many of the frames that came are for us. */
static int count_answers(struct toklat_port *port)
{
    struct toklat_frame frames[BATCH];
    int came = toklat_receive(port, 0, frames, BATCH), answers = 0;

    for (int i = 0; i < came; i++)
        answers += frames[i].length >= 14 && memcmp(frames[i].data, header + 6, 6) == 0;
    return answers;
}

int main(int argc, char **argv)
{
    struct toklat_stats stats = TOKLAT_STATS_INIT;
    struct toklat_port *port;
    unsigned long long most, answers = 0;
    int error;

    if (argc < 2) {
        fprintf(stderr, "usage: generator PORT [FRAMES]\n");
        return 2;
    }
    header[10] = getpid() >> 8, header[11] = getpid();
    most = argc > 2 ? strtoull(argv[2], NULL, 0) : ~0ull;
    if ((error = toklat_open(argv[1], NULL, &port)) < 0) {
        fprintf(stderr, "generator: %s: %s\n", argv[1], toklat_strerror(error));
        return 1;
    }
    while (answers < most) {
        if ((error = send_batch(port)) < 0)
            break;
        /* Publishes the batch, and waits for answers or, after 10 ms, sends the next one. */
        if ((error = toklat_wait(port, TOKLAT_READ, 10)) < 0)
            break;
        answers += count_answers(port);
    }
    if (error < 0)
        fprintf(stderr, "generator: %s\n", toklat_message(port));
    toklat_stats(port, &stats);
    printf("%llu sent, %llu came back\n", (unsigned long long)stats.sent_frames, answers);
    toklat_close(port);
    return error < 0;
}
