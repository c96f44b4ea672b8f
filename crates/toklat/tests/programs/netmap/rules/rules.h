/* The rules, one function each. A rule that does not hold ends the program. */
#ifndef RULES_H
#define RULES_H

#include "../nm.h"

void unbound(void);
void lowest_number(void);
void layout(void);
void errors(void);
void options(void);
void poll_sends(void);
void wakes(void);
void selects(void);
void epolls(void);
void exclusive(void);
void one_ring_each(void);
void bad_cursors(void);
void fragments(void);
void extra_buffers(void);
void closed(void);
void shared_region(void);
void information(void);
void legacy(void);
void pipes(void);
void pipe_zero_copy(void);
void persistent(void);
void monitors(void);
void copies(void);
void passing(void);
void executed(void);
void close_all(void);
void threads(void);
void shared_ring(void);
void csb(void);
void kloop_sleeps(void);
void kloop_events(void);
void extmem(void);
void cancelled(void);
void watchers(void);
void sets_in_sets(void);
void edges(void);
void offsets(void);
void port_headers(void);
void pipe_monitors(void);
void long_frames(void);
void joined(void);
void sink(void);

#endif
