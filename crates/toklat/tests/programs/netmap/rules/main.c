/* rules NAME: checks one rule of netmap's interface. Without a name, lists the rules. */
#include "rules.h"

static const struct { const char *name; void (*run)(void); } rules[] = {
#define RULE(name) { #name, name }
	RULE(unbound), RULE(lowest_number), RULE(layout), RULE(errors), RULE(options), RULE(poll_sends),
	RULE(wakes), RULE(selects), RULE(epolls), RULE(exclusive), RULE(one_ring_each), RULE(bad_cursors),
	RULE(fragments), RULE(extra_buffers), RULE(closed), RULE(shared_region), RULE(information), RULE(legacy),
	RULE(pipes), RULE(pipe_zero_copy), RULE(persistent), RULE(monitors), RULE(copies), RULE(passing),
	RULE(executed), RULE(close_all), RULE(threads), RULE(shared_ring),
	RULE(csb), RULE(kloop_sleeps), RULE(kloop_events), RULE(extmem), RULE(cancelled),
	RULE(sets_in_sets), RULE(edges), RULE(offsets), RULE(watchers), RULE(port_headers), RULE(pipe_monitors), RULE(long_frames), RULE(joined), RULE(sink),
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++) {
		if (argc < 2)
			puts(rules[i].name);
		else if (!strcmp(argv[1], rules[i].name))
			return rules[i].run(), 0;
	}
	return argc < 2 ? 0 : 2;
}
