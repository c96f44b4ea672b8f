/*
 * many: threads and processes that share switches, pipes, descriptors and rings, for detectors of races and of wrong
 * memory. many race, many memory: the same with a fault that a detector must find.
 */
#include "nm.h"
#include <pthread.h>
#include <sys/wait.h>

/* Few: detectors make programs fifty times slower. */
enum { FRAMES = 500, EACH = 100, SENDERS = 3, OPENINGS = 8 };

static struct nm from, to;
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
static int racing, unguarded;

static void put(struct nm *d, uint32_t number)
{
	struct nm_ring *r = nm_tx(d, 0);
	while (nm_space(r) == 0) {
		struct pollfd p = { .fd = d->fd, .events = POLLOUT };
		CHECK(poll(&p, 1, 30000) == 1 && p.revents == POLLOUT);
	}
	nm_put(r, 1, -1, number);
}

/* One end of a pipe. */
static void *pipe_sender(void *arg)
{
	struct nm *d = arg;
	for (uint32_t n = 0; n < FRAMES; n++) {
		put(d, n);
		if (n % 32 == 31 || n == FRAMES - 1)
			CHECK(ioctl(d->fd, NIOCTXSYNC, NULL) == 0);
	}
	return NULL;
}

/* The other end. */
static void *pipe_receiver(void *arg)
{
	struct nm *d = arg;
	for (uint32_t n = 0; n < FRAMES; n++)
		CHECK(nm_get(d->fd, nm_rx(d, 0)) == n);
	return NULL;
}

/* One of several threads that send by one ring, each in its turn. */
static void *turn_sender(void *arg)
{
	for (uint32_t n = 0; n < EACH; n++) {
		if (racing)
			unguarded++;
		CHECK(pthread_mutex_lock(&one) == 0);
		put(&from, n);
		CHECK(ioctl(from.fd, NIOCTXSYNC, NULL) == 0);
		CHECK(pthread_mutex_unlock(&one) == 0);
	}
	return NULL;
}

static void *turn_receiver(void *arg)
{
	for (uint32_t n = 0; n < SENDERS * EACH; n++)
		nm_get(to.fd, nm_rx(&to, 0));
	return NULL;
}

/* Opens, uses and closes ports, and duplicates of others' descriptors, while those are in use. */
static void *opener(void *arg)
{
	for (int n = 0; n < OPENINGS; n++) {
		struct nm d = nm_port(arg);
		put(&d, n);
		CHECK(ioctl(d.fd, NIOCTXSYNC, NULL) == 0);
		CHECK(munmap(d.mem, d.reg.memsize) == 0 && close(d.fd) == 0);
		int other = dup(to.fd);
		struct pollfd p = { .fd = other, .events = POLLOUT };
		CHECK(other >= 0 && poll(&p, 1, 0) >= 0 && close(other) == 0);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	racing = argc > 1 && !strcmp(argv[1], "race");
	/* On a switch of their own: their receiver gets only what they send. */
	from = nm_port("vale1:from");
	to = nm_port("vale1:to");
	struct nm pipes[4] = { nm_port("vale0:x{1"), nm_port("vale0:x}1"), nm_port("vale0:y{1"), nm_port("vale0:y}1") };
	if (argc > 1 && !strcmp(argv[1], "memory")) {
		volatile char *gone = malloc(16);
		free((void *)gone);
		CHECK(poll(NULL, 0, gone[3] & 1) == 0);
	}
	pthread_t thread[SENDERS + 7];
	int n = 0;
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&thread[n++], NULL, i % 2 ? pipe_receiver : pipe_sender, &pipes[i]) == 0);
	CHECK(pthread_create(&thread[n++], NULL, turn_receiver, NULL) == 0);
	for (int i = 0; i < SENDERS; i++)
		CHECK(pthread_create(&thread[n++], NULL, turn_sender, NULL) == 0);
	CHECK(pthread_create(&thread[n++], NULL, opener, "vale0:p") == 0);
	CHECK(pthread_create(&thread[n++], NULL, opener, "vale0:q") == 0);
	while (n > 0)
		CHECK(pthread_join(thread[--n], NULL) == 0);
	/* Processes that were forked use the descriptors, too. */
	for (uint32_t i = 0; i < 2; i++) {
		int status, pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			put(&from, 77 + i);
			CHECK(ioctl(from.fd, NIOCTXSYNC, NULL) == 0);
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
		CHECK(nm_get(to.fd, nm_rx(&to, 0)) == 77 + i);
	}
	puts("ok");
	return 0;
}
