//! Parses the names of ports (netmap(4), "ENTERING AND EXITING NETMAP MODE").

use rustix::io::Errno;

use crate::abi::{reqtype, text};
use crate::wire::Ask;

/// The kinds of names in requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// `valeS:p`: a port of a switch.
    Vale {
        /// The switch's name, with the prefix `vale`.
        switch: String,
        port: String,
    },
    /// `BASE{ID` or `BASE}ID`: an end of a pipe.
    Pipe {
        base: String,
        /// Either brace.
        brace: char,
        id: String,
    },
    /// Any other name: a persistent port, or an interface.
    Plain(String),
}

/// The prefix of switches' names, as far as netmap compares it.
const PREFIX: &str = "val";
/// Limit in bytes of the part before the colon, and of the part from the colon on.
const PART: usize = 16;
/// Limit in bytes of the name of a persistent port, without the zero at its end.
const PLAIN: usize = 15;

impl Name {
    /// Parses a name.
    pub(super) fn parse(text: &str) -> Result<Self, Errno> {
        if let Some(at) = text.find(['{', '}']) {
            let (base, id) = (&text[..at], &text[at + 1..]);
            let brace = if text[at..].starts_with('{') { '{' } else { '}' };
            if base.is_empty() || id.is_empty() || id.contains(['{', '}', '/']) {
                return Err(Errno::INVAL);
            }
            // The part before the brace must itself be a valid name.
            Self::parse(base)?;
            return Ok(Self::Pipe { base: base.into(), brace, id: id.into() });
        }
        if text.starts_with(PREFIX) && text.contains(':') {
            return Self::parse_vale(text);
        }
        let good = (1..=PLAIN).contains(&text.len()) && !text.contains(['/', ':']);
        if good { Ok(Self::Plain(text.into())) } else { Err(Errno::INVAL) }
    }

    fn parse_vale(text: &str) -> Result<Self, Errno> {
        let (switch, port) = text.split_once(':').ok_or(Errno::INVAL)?;
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let good = switch.len() < PART && switch.chars().all(word);
        if !good || port.is_empty() || port.len() >= PART {
            return Err(Errno::INVAL);
        }
        Ok(Self::Vale { switch: switch.into(), port: port.into() })
    }

    /// Returns true for names of ports of switches, existing or not.
    pub(super) fn is_switched(text: &str) -> bool {
        text.starts_with(PREFIX)
    }
}

/// The name in a request that may be one of an interface of the host: without an end of a pipe, and
/// of a port of a switch only where the request attaches interfaces.
#[must_use]
pub fn interface_name(ask: &Ask) -> Option<&str> {
    let name = text(&ask.name[..])?;
    let base = name.split(['{', '}']).next().unwrap_or(name);
    match base.split_once(':') {
        None => Some(base),
        Some((_, port)) => (ask.reqtype == reqtype::VALE_ATTACH).then_some(port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood_as_in_the_kernel() {
        let vale =
            |switch: &str, port: &str| Ok(Name::Vale { switch: switch.into(), port: port.into() });
        let pipe = |base: &str, brace, id: &str| {
            Ok(Name::Pipe { base: base.into(), brace, id: id.into() })
        };
        let no = Err(Errno::INVAL);
        for (text, meaning) in [
            ("vale0:1", vale("vale0", "1")),
            ("vale:x", vale("vale", "x")),
            ("valX:y", vale("valX", "y")),
            ("vale0:1{7", pipe("vale0:1", '{', "7")),
            ("a}out", pipe("a", '}', "out")),
            ("eth0", Ok(Name::Plain("eth0".into()))),
            ("", no.clone()),
            ("{1", no.clone()),
            ("a{", no.clone()),
            ("vale0:", no.clone()),
            ("va-le:x", no.clone()),
            ("val-e:x", no.clone()),
            ("vale0:0123456789abcdef", no.clone()),
            ("0123456789abcdef", no.clone()),
        ] {
            assert_eq!(Name::parse(text), meaning, "{text}");
        }
    }
}
