//! Quarantine of ports that killed two data processes in a row, so that the other ports live.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dataplane::config::PortId;

/// The first and the longest quarantine. Each is twice as long as the one before.
const TERMS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));
/// After this time without a quarantine, the next one is short again.
const FORGIVEN: Duration = Duration::from_secs(3600);

/// An object of quarantine: an untrusted user with all its ports, or one port by its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Offender {
    /// A user other than root and the daemon's user.
    User(u32),
    /// A port of root or of the daemon's user.
    Port(String),
}

#[derive(Clone, Copy, Debug)]
struct Term {
    until: Instant,
    length: Duration,
}

/// Which users and ports are quarantined, and for how long.
#[derive(Debug, Default)]
pub struct Quarantine {
    /// The port that was being served when the last data process died.
    suspect: Option<PortId>,
    terms: HashMap<Offender, Term>,
}

impl Quarantine {
    /// Records that a data process died while serving `port`, if that is known. Returns true if the
    /// last one died of the same port.
    pub fn died_of(&mut self, port: Option<PortId>) -> bool {
        let again = port.is_some() && self.suspect == port;
        self.suspect = if again { None } else { port.or(self.suspect) };
        again
    }

    /// Clears the suspect, because a data process has run well for long.
    pub fn ran_well(&mut self) {
        self.suspect = None;
    }

    /// Begins a quarantine; returns its length.
    pub fn begin(&mut self, who: Offender, now: Instant) -> Duration {
        let earlier = self.terms.get(&who).filter(|term| now < term.until + FORGIVEN);
        let length = earlier.map_or(TERMS.0, |term| (2 * term.length).min(TERMS.1));
        self.terms.insert(who, Term { until: now + length, length });
        length
    }

    /// The rest of the quarantine; `None` if there is none.
    pub fn lasts(&self, who: &Offender, now: Instant) -> Option<Duration> {
        let term = self.terms.get(who)?;
        term.until.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// Everybody may open ports again.
    pub fn end_all(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_port_twice_running_is_at_fault_and_another_is_not() {
        let mut quarantine = Quarantine::default();
        assert!(!quarantine.died_of(Some(1)));
        assert!(!quarantine.died_of(Some(2)), "another one");
        assert!(!quarantine.died_of(None), "killed from outside");
        assert!(quarantine.died_of(Some(2)));
        assert!(!quarantine.died_of(Some(2)), "it has its term; the count begins again");
        quarantine.ran_well();
        assert!(!quarantine.died_of(Some(2)));
    }

    #[test]
    fn terms_get_longer_until_they_are_forgiven() {
        let (mut quarantine, start) = (Quarantine::default(), Instant::now());
        let (user, port) = (Offender::User(1000), Offender::Port("p".into()));
        let mut now = start;
        let lengths: Vec<_> = (0..8)
            .map(|_| {
                let length = quarantine.begin(user.clone(), now).as_secs();
                now += Duration::from_secs(length);
                length
            })
            .collect();
        assert_eq!(lengths, [10, 20, 40, 80, 160, 320, 600, 600]);
        assert_eq!(quarantine.lasts(&user, now), None, "over");
        assert!(quarantine.lasts(&user, now - Duration::from_secs(1)).is_some());
        assert_eq!(quarantine.lasts(&port, start), None);
        now += FORGIVEN;
        assert_eq!(quarantine.begin(user.clone(), now), TERMS.0);
        quarantine.end_all();
        assert_eq!(quarantine.lasts(&user, now), None);
    }
}
