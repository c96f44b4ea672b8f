/* Receives frames and counts them: sink PORT [FRAMES], for ever or until so many have come. */
#include <stdio.h>
#include <stdlib.h>
#include <toklat.h>

#define BATCH 256

static char message[256];

int main(int argc, char **argv)
{
    struct toklat_options options = TOKLAT_OPTIONS_INIT;
    struct toklat_frame frames[BATCH];
    struct toklat_port *port;
    unsigned long long most, count = 0, bytes = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: sink PORT [FRAMES]\n");
        return 2;
    }
    most = argc > 2 ? strtoull(argv[2], NULL, 0) : ~0ull;
    options.message = message;
    options.message_size = sizeof(message);
    if (toklat_open(argv[1], &options, &port) < 0) {
        fprintf(stderr, "sink: %s\n", message);
        return 1;
    }
    while (count < most) {
        /* Gives the last batch back, and sleeps until a frame comes. */
        if (toklat_wait(port, TOKLAT_READ, -1) < 0) {
            fprintf(stderr, "sink: %s\n", toklat_message(port));
            break;
        }
        int came = toklat_receive(port, 0, frames, BATCH);
        for (int i = 0; i < came; i++)
            bytes += frames[i].length;
        count += came > 0 ? came : 0;
    }
    printf("%llu frames, %llu bytes\n", count, bytes);
    toklat_close(port);
    return count < most;
}
