//! Fair turns: whose turn it is when there is more to send than a worker, or a lossless receiver,
//! can take.
//!
//! Each port has an account of the bytes it has sent, divided by its weight. A port whose account
//! is ahead of the others' skips its turns until they have caught up: deficit round robin
//! (Shreedhar and Varghese, 1996), in which a turn may overshoot by a batch. Only ports that leave
//! frames behind in their queues count as others, so no port waits for an idle one, and a port that
//! is alone never waits.

use fabric::Sender;

/// Bytes that a turn may move before the port's batches are made smaller.
const TURN_BYTES: u64 = 256 << 10;
/// Bytes of the shortest frame, without its check sequence.
const LEAST_FRAME: u64 = 60;
/// Bytes that a port sends in small turns before they are charged to its account.
const CHARGED_BYTES: u64 = 16 << 10;
/// What a byte costs a port of weight 1.
const UNIT: u32 = 1 << 16;
/// How far a port may be ahead of the others, and how far behind them: what it did not use while it
/// was idle is not saved up.
const SLACK: i64 = (64 << 10) * UNIT as i64;
/// No port is as far ahead as this. It has been idle while the accounts of others went around.
const NEVER: i64 = (1 << 30) * UNIT as i64;

/// A port's account.
#[derive(Clone, Copy, Debug, Default)]
struct Account(u64);

/// What a byte costs a port of this weight.
fn cost(weight: u16) -> u32 {
    UNIT / u32::from(weight.max(1))
}

/// A round of turns among ports that want the same thing.
#[derive(Debug)]
pub struct Round {
    /// The account of the port that was furthest behind in the last round.
    floor: u64,
    /// How far ahead of `floor` a port may be and have a turn.
    most: i64,
    /// The least that a port was ahead in this round.
    least: i64,
}

impl Default for Round {
    /// A round without a beginning, for single ports: each has its turn.
    fn default() -> Self {
        Self { floor: 0, most: i64::MAX, least: i64::MAX }
    }
}

impl Round {
    /// Begins the next round.
    #[inline]
    fn begin(&mut self) {
        let contended = self.least != i64::MAX;
        self.floor = self.floor.wrapping_add(if contended { self.least as u64 } else { 0 });
        self.most = if contended { SLACK } else { i64::MAX };
        self.least = i64::MAX;
    }

    /// True if a port has to skip its turn.
    #[inline]
    fn skips(&mut self, Account(spent): Account) -> bool {
        let ahead = spent.wrapping_sub(self.floor) as i64;
        if ahead <= self.most || ahead >= NEVER {
            return false;
        }
        self.least = self.least.min(ahead);
        true
    }

    /// True if a port that waits has to let others try first. It still counts among them.
    fn waits(&mut self, Account(spent): Account) -> bool {
        let ahead = (spent.wrapping_sub(self.floor) as i64).max(-SLACK);
        self.least = self.least.min(if ahead >= NEVER { 0 } else { ahead });
        ahead > self.most && ahead < NEVER
    }

    /// Charges a port for bytes. `wants_more` says that frames stay behind.
    #[inline]
    fn charge(&mut self, account: &mut Account, bytes: u64, cost: u32, wants_more: bool) {
        let ahead = account.0.wrapping_sub(self.floor) as i64;
        let ahead = if ahead >= NEVER { 0 } else { ahead.max(-SLACK) };
        let ahead = ahead + (bytes * u64::from(cost)) as i64;
        account.0 = self.floor.wrapping_add(ahead as u64);
        if wants_more {
            self.least = self.least.min(ahead);
        }
    }
}

/// The rounds of a worker.
#[derive(Debug, Default)]
pub struct Fair {
    /// Turns of all ports.
    turns: Round,
    /// For each lossless receiver, by port and queue: those who wait for it, and whether any did in
    /// this round.
    waits: Vec<((u16, u16), Round, bool)>,
}

impl Fair {
    /// Begins the next round of all ports' turns.
    #[inline]
    pub fn begin(&mut self) {
        self.turns.begin();
        if !self.waits.is_empty() {
            self.begin_waits();
        }
    }

    /// Gives every port its turn until the next round begins.
    #[inline]
    pub fn open(&mut self) {
        self.turns = Round { floor: self.turns.floor, ..Round::default() };
    }

    #[cold]
    fn begin_waits(&mut self) {
        self.waits.retain_mut(|(_, round, is_used)| {
            round.begin();
            std::mem::take(is_used)
        });
    }

    /// The round of those who wait for the same receiver as `sender`.
    #[cold]
    fn wait(&mut self, sender: &Sender) -> Option<&mut Round> {
        let receiver = sender.waits_for()?;
        let at = self.waits.iter().position(|(of, ..)| *of == receiver).unwrap_or_else(|| {
            self.waits.push((receiver, Round::default(), true));
            self.waits.len() - 1
        });
        let (_, round, is_used) = self.waits.get_mut(at)?;
        *is_used = true;
        Some(round)
    }
}

/// A port's part of its worker's turns.
#[derive(Debug)]
pub struct Share {
    /// What a byte costs the port, by its weight.
    cost: u32,
    /// What it has sent, and bytes that are not in its account yet.
    spent: Account,
    uncharged: u64,
    /// What it has sent to lossless receivers that had no room at once.
    waited: Account,
    /// How many frames make a turn of so many bytes as a turn may have.
    most_frames: usize,
}

impl Default for Share {
    /// The share of a port of weight 1.
    fn default() -> Self {
        let (spent, waited) = (Account::default(), Account::default());
        Self { cost: cost(1), spent, uncharged: 0, waited, most_frames: usize::MAX }
    }
}

impl Share {
    /// Changes the port's weight.
    pub fn set_weight(&mut self, weight: u16) {
        self.cost = cost(weight);
    }

    /// True if the port has to skip its turn.
    pub fn skips(&self, fair: &mut Fair) -> bool {
        fair.turns.skips(self.spent)
    }

    /// The most frames of the port's next batch.
    #[inline]
    pub fn batch(&self, most: usize) -> usize {
        most.min(self.most_frames)
    }

    /// Pays for a turn of this many bytes and frames; `most` frames would have been taken. Returns
    /// true if the next turn has to be asked for.
    #[inline]
    pub fn pay(&mut self, fair: &mut Fair, bytes: u64, frames: usize, most: usize) -> bool {
        // Frames without bytes are dropped, but cost turns.
        self.uncharged += bytes.max(LEAST_FRAME * frames as u64);
        // The queue of a port that fills half a batch has more, or soon will.
        let wants_more = 2 * frames >= most;
        let charges = wants_more || self.uncharged > CHARGED_BYTES;
        if charges {
            let uncharged = std::mem::take(&mut self.uncharged);
            fair.turns.charge(&mut self.spent, uncharged, self.cost, wants_more);
            self.fit_batch(frames, bytes);
        }
        charges
    }

    /// Fits the next batch to the bytes that a turn may have.
    #[inline]
    fn fit_batch(&mut self, frames: usize, bytes: u64) {
        if bytes > TURN_BYTES {
            self.most_frames = ((frames as u64 * TURN_BYTES / bytes) as usize).max(1);
        } else if self.most_frames != usize::MAX && 2 * bytes < TURN_BYTES {
            self.most_frames = self.most_frames.saturating_mul(2);
        }
    }

    /// A batch of this many bytes begins to wait for a lossless receiver.
    #[cold]
    pub fn begin_wait(&mut self, fair: &mut Fair, sender: &Sender, bytes: u64) {
        if let Some(round) = fair.wait(sender) {
            round.charge(&mut self.waited, bytes, self.cost, true);
        }
    }

    /// True if others who wait for the same lossless receiver come first.
    #[cold]
    pub fn gives_way(&self, fair: &mut Fair, sender: &Sender) -> bool {
        fair.wait(sender).is_some_and(|round| round.waits(self.waited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that ports have sent in so many rounds: their weights, the bytes of a turn, and
    /// whether they always want more.
    fn sent<const N: usize>(rounds: usize, ports: [(u16, u64, bool); N]) -> [u64; N] {
        let (mut round, mut accounts, mut sent) = (Round::default(), [Account(0); N], [0; N]);
        for _ in 0..rounds {
            round.begin();
            for (port, (weight, bytes, more)) in ports.into_iter().enumerate() {
                if !round.skips(accounts[port]) {
                    round.charge(&mut accounts[port], bytes, cost(weight), more);
                    sent[port] += bytes;
                }
            }
        }
        sent
    }

    fn ratio(a: u64, b: u64) -> f64 {
        a as f64 / b as f64
    }

    #[test]
    fn bytes_are_shared_by_weight_whatever_the_size_of_a_turn() {
        for (a, b) in [(4096, 4096), (4096, 96_000), (4096, 262_144), (96_000, 262_144)] {
            for (w, v) in [(1, 1), (1, 3), (3, 1), (1, 100), (7, 1000)] {
                let [x, y] = sent(400_000, [(w, a, true), (v, b, true)]);
                let is = ratio(x, y) * f64::from(v) / f64::from(w);
                assert!((0.95..1.05).contains(&is), "{a} {b} {w} {v}: {x} {y}");
            }
        }
    }

    #[test]
    fn a_port_that_wants_no_more_holds_no_other_back() {
        let [slow, bulk] = sent(1000, [(1, 64, false), (1, 96_000, true)]);
        assert_eq!((slow, bulk), (64_000, 96_000_000));
        assert_eq!(sent(1000, [(1, 96_000, true)]), [96_000_000]);
    }

    #[test]
    fn an_idle_port_saves_up_next_to_nothing_and_is_never_locked_out() {
        let (mut round, mut accounts) = (Round::default(), [Account(0); 2]);
        // As far as wrapping accounts go.
        for ahead in [1u64 << 20, 1 << 40, 1 << 62, 1 << 63, (1 << 63) + 5, u64::MAX - 3] {
            round.floor = accounts[1].0.wrapping_add(ahead);
            accounts[0] = Account(round.floor);
            (round.most, round.least) = (SLACK, i64::MAX);
            assert!(!round.skips(accounts[1]), "{ahead}");
            let mut turns = [0u32; 2];
            for _ in 0..10_000 {
                round.begin();
                for (account, turns) in accounts.iter_mut().zip(&mut turns) {
                    if !round.skips(*account) {
                        round.charge(account, 4096, cost(1), true);
                        *turns += 1;
                    }
                }
            }
            assert!(turns[0].abs_diff(turns[1]) <= 32, "{ahead}: {turns:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn weights_hold_among_any_ports(
            ports in proptest::array::uniform4((1u16..=64, 1u64..=262_144)),
        ) {
            let all = sent(100_000, ports.map(|(weight, bytes)| (weight, bytes, true)));
            let share = |at: usize| all[at] as f64 / f64::from(ports[at].0);
            for at in 1..4 {
                // A port may be ahead by its last turn and the slack of its weight.
                let slack = (262_144.0 + 131_072.0) / share(0).min(share(at));
                let is = share(at) / share(0);
                proptest::prop_assert!((is - 1.0).abs() < 0.02 + slack, "{ports:?}: {all:?}");
            }
        }
    }
}
