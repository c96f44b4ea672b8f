// SPDX-License-Identifier: MIT OR Apache-2.0
/* One frame in flight over DPDK ports: sends on the first port, spins until it comes back on the last, and prints the median in
 * microseconds.
 *   rtt <EAL arguments> -- BYTES COUNT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

enum { WARM_UP = 2000, BURST = 32 };
static struct rte_mempool *pool;

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static int start_port(uint16_t port)
{
	struct rte_eth_conf conf;
	uint16_t rx = 1024, tx = 1024;

	memset(&conf, 0, sizeof conf);
	return rte_eth_dev_configure(port, 1, 1, &conf) || rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx)
		|| rte_eth_rx_queue_setup(port, 0, rx, 0, NULL, pool) || rte_eth_tx_queue_setup(port, 0, tx, 0, NULL)
		|| rte_eth_dev_start(port);
}

static struct rte_mbuf *frame(uint16_t from, uint16_t to, uint16_t bytes)
{
	struct rte_mbuf *m = rte_pktmbuf_alloc(pool);
	struct rte_ether_hdr *h = m ? (struct rte_ether_hdr *)rte_pktmbuf_append(m, bytes) : NULL;

	if (!h)
		exit(1);
	memset(h, 0, bytes);
	rte_eth_macaddr_get(to, &h->dst_addr);
	rte_eth_macaddr_get(from, &h->src_addr);
	h->ether_type = rte_cpu_to_be_16(0x88b5);
	return m;
}

static uint16_t receive(uint16_t port)
{
	struct rte_mbuf *got[BURST];
	uint16_t n = rte_eth_rx_burst(port, 0, got, BURST);

	for (uint16_t i = 0; i < n; i++)
		rte_pktmbuf_free(got[i]);
	return n;
}

/* Sends a frame the other way, so that a switch between the ports learns where both are. */
static void teach(uint16_t from, uint16_t to, uint16_t bytes)
{
	struct rte_mbuf *m = frame(from, to, bytes);

	if (rte_eth_tx_burst(from, 0, &m, 1) != 1)
		rte_pktmbuf_free(m);
	rte_delay_ms(2);
	receive(to);
}

static uint64_t trip(uint16_t from, uint16_t to, uint16_t bytes)
{
	struct rte_mbuf *m = frame(from, to, bytes);
	uint64_t start = rte_rdtsc(), limit = start + 2 * rte_get_tsc_hz();
	int sent = 0;

	while (!(sent && receive(to))) {
		sent = sent || rte_eth_tx_burst(from, 0, &m, 1) == 1;
		if (rte_rdtsc() > limit) {
			fprintf(stderr, "rtt: a frame was lost\n");
			exit(1);
		}
	}
	return rte_rdtsc() - start;
}

int main(int argc, char **argv)
{
	int used = rte_eal_init(argc, argv), count;
	uint16_t first = 0, last, bytes;
	uint64_t *trips;

	if (used < 0 || argc - used < 3)
		return 2;
	bytes = (uint16_t)atoi(argv[used + 1]);
	count = atoi(argv[used + 2]);
	trips = calloc((size_t)count, sizeof *trips);
	pool = rte_pktmbuf_pool_create("frames", 8191, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, 0);
	last = (uint16_t)(rte_eth_dev_count_avail() - 1);
	if (!pool || !trips || start_port(first) || (last != first && start_port(last)))
		return 1;
	sleep(2);   /* the other side connects */
	for (int i = 0; i < 10 && last != first; i++)
		teach(last, first, bytes);
	for (int i = -WARM_UP; i < count; i++) {
		uint64_t t = trip(first, last, bytes);
		if (i >= 0)
			trips[i] = t;
	}
	qsort(trips, (size_t)count, sizeof *trips, by_value);
	printf("%.3f\n", (double)trips[count / 2] * 1e6 / (double)rte_get_tsc_hz());
	return 0;
}
