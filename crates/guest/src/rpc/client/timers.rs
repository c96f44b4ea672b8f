//! The work that is due when time passes: repeats, and the ends of waits.

use std::cmp::Reverse;

use tcp::Nanos;

use super::{Client, DOUBLINGS, Failure, Replies, Session, SessionId, State, TURN, UNARMED};
use crate::nic::Room;
use crate::rpc::wire::Flags;

impl Session {
    /// Whether the server was silent for too long. `is_due`: a request is to be repeated.
    fn is_silent(&mut self, is_due: bool, now: Nanos, patience: u64) -> bool {
        if self.state == State::Open && is_due && self.silent <= self.heard {
            self.silent = now;
        }
        (self.state == State::Opening || is_due) && now - self.silent > patience
    }
}

/// Time.
impl Client {
    /// Repeats requests that were not answered in time, and sends packets that found no room
    /// before. Returns when to call it again.
    pub fn poll(
        &mut self,
        now: Nanos,
        replies: &mut impl Replies,
        room: &mut impl Room,
    ) -> Option<Nanos> {
        for _ in 0..TURN.min(self.ready.len()) {
            let Some(number) = self.ready.pop_front() else { break };
            self.resume(number as usize, room);
        }
        while let Some(Reverse((deadline, number))) = self.timers.peek().copied() {
            if deadline > now {
                break;
            }
            self.timers.pop();
            let session = &mut self.sessions[number as usize];
            // Other entries are old: their deadline was brought forward, or their session has
            // ended.
            if session.armed == deadline {
                session.armed = UNARMED;
                self.expire(number as usize, now, replies, room);
            }
        }
        if self.ready.is_empty() { Some(self.timers.peek()?.0.0) } else { Some(now) }
    }

    /// Sends for slots that found no room before.
    fn resume(&mut self, number: usize, room: &mut impl Room) {
        let session = &mut self.sessions[number];
        session.is_listed = false;
        for slot in session.busy() {
            let place = &mut self.sessions[number].slots[slot];
            if std::mem::take(&mut place.is_due) && !place.is_taken {
                self.push(number, slot, room);
            }
        }
    }

    /// Looks at a session's requests.
    fn expire(
        &mut self,
        number: usize,
        now: Nanos,
        replies: &mut impl Replies,
        room: &mut impl Room,
    ) {
        let timeout = |tries: u8| self.config.timeout << tries.min(DOUBLINGS);
        let session = &mut self.sessions[number];
        let (mut next, mut due) = (None::<Nanos>, 0u64);
        match session.state {
            State::Closed | State::Free => return,
            State::Opening => {
                session.tries = session.tries.saturating_add(1);
                next = Some(now + timeout(session.tries));
            }
            State::Open => {
                for slot in session.busy() {
                    let place = &mut session.slots[slot];
                    let mut at = place.heard + timeout(place.tries);
                    if at <= now {
                        place.tries = place.tries.saturating_add(1);
                        due |= 1 << slot;
                        place.heard = now;
                        at = now + timeout(place.tries);
                    }
                    next = Some(next.map_or(at, |next| next.min(at)));
                }
            }
        }
        if session.is_silent(due != 0, now, self.config.patience) {
            self.fail(number, replies);
            self.sessions[number].state = State::Closed;
            return;
        }
        self.repeat(number, due, room);
        if let Some(next) = next {
            self.arm(number, next);
        }
    }

    /// Repeats an opening, or the requests of the slots in `due`.
    fn repeat(&mut self, number: usize, mut due: u64, room: &mut impl Room) {
        if self.sessions[number].state == State::Opening {
            self.counters.repeated += 1;
            return self.ask_to_open(number, room);
        }
        while due != 0 {
            let slot = due.trailing_zeros() as usize;
            due &= due - 1;
            self.counters.repeated += 1;
            let place = &mut self.sessions[number].slots[slot];
            // Asks with a short packet; the server's answer says what to send again.
            if place.is_taken || place.sending().is_some() {
                self.pull(number, slot, Flags::EXPIRED, room);
            } else {
                self.push(number, slot, room);
            }
        }
    }

    /// Ends all requests of a session: no one knows whether they have run.
    pub(super) fn fail(&mut self, number: usize, replies: &mut impl Replies) {
        self.counters.lost += 1;
        let session = &mut self.sessions[number];
        for slot in session.busy() {
            let tag = session.end(slot);
            replies.done(SessionId(number as u32), tag, Err(Failure::Ambiguous));
        }
    }
}
