//! Links with names, and what ports say of theirs.

use std::collections::BTreeMap;

use fabric::{LINK_PRESETS, LinkConfig};
use serde::{Deserialize, Serialize};

use crate::{Invalid, PORT_NAME, Policy, check_name};

/// A link of the topology: words with their values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct LinkSpec(pub BTreeMap<String, LinkWord>);

/// A value of a word: a text such as `10Mb/s`, a number such as a seed, or `true`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum LinkWord {
    /// A text.
    Text(String),
    /// A number.
    Number(u64),
    /// Whether a word without a value is said.
    Flag(bool),
}

impl LinkSpec {
    /// The link in words, as in `rate=10Mb/s,delay=25ms`.
    #[must_use]
    pub fn words(&self) -> String {
        let word = |(name, value): (&String, &LinkWord)| match value {
            LinkWord::Text(text) => Some(format!("{name}={text}")),
            LinkWord::Number(number) => Some(format!("{name}={number}")),
            LinkWord::Flag(true) => Some(name.clone()),
            LinkWord::Flag(false) => None,
        };
        self.0.iter().filter_map(word).collect::<Vec<_>>().join(",")
    }
}

/// True if a port's link is the name of one of the topology, and not words.
pub(crate) fn is_name(text: &str) -> bool {
    !text.contains(['=', ','])
        && text != "ecn"
        && LINK_PRESETS.iter().all(|(name, _)| *name != text)
}

/// The words of a port's link. `links` are those of the topology.
///
/// # Errors
/// There is no such link.
pub fn link_words(text: &str, links: &BTreeMap<String, LinkSpec>) -> Result<String, Invalid> {
    match links.get(text) {
        Some(link) => Ok(link.words()),
        None if is_name(text) => Err(Invalid::new(
            format!("There is no link {text:?}"),
            format!(
                "add [link.{text}] to the topology, or use words, such as rate=10Mb/s,delay=25ms"
            ),
        )),
        None => Ok(text.to_owned()),
    }
}

/// Checks the links of the topology.
///
/// # Errors
/// Names the first that is invalid.
pub fn check_links(links: &BTreeMap<String, LinkSpec>) -> Result<(), Invalid> {
    for (name, link) in links {
        check_name(name, PORT_NAME)?;
        if !is_name(name) {
            let reason = format!("link.{name} has the name of a link that is built in");
            return Err(Invalid::new(reason, "give it another name"));
        }
        check_words(&format!("link.{name}"), &link.words())?;
    }
    Ok(())
}

fn check_words(place: &str, words: &str) -> Result<(), Invalid> {
    let checked = words.parse::<LinkConfig>();
    checked.map(drop).map_err(|error| {
        Invalid::new(format!("{place}: {error}"), "see --tx-link and docs/links.md")
    })
}

/// Checks what a port says of its links. Names are looked up later.
///
/// # Errors
/// A word is invalid, or a direction has both a link and an impairment.
pub(crate) fn check_port_links(name: &str, policy: &Policy) -> Result<(), Invalid> {
    let ways = [
        ("tx_link", &policy.tx_link, policy.tx_impairment.is_some()),
        ("rx_link", &policy.rx_link, policy.rx_impairment.is_some()),
    ];
    for (setting, link, impaired) in ways {
        let Some(text) = link else { continue };
        if impaired {
            let reason = format!("{name} has {setting} and an impairment of the same direction");
            let remedy = "say loss= and delay= in the link, and leave out the impairment";
            return Err(Invalid::new(reason, remedy));
        }
        if !is_name(text) {
            check_words(&format!("{name}: {setting}"), text)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_words_are_the_same_link() {
        let text = "rate = \"20Mb/s\"\ndelay = \"35ms\"\nseed = 7\necn = true\naqm = \"codel\"";
        let link: LinkSpec = toml::from_str(text).unwrap();
        let words = "rate=20Mb/s,delay=35ms,seed=7,ecn,aqm=codel";
        assert_eq!(link.words().parse::<LinkConfig>(), words.parse::<LinkConfig>());
        let links = [("slow".to_owned(), link)].into();
        check_links(&links).unwrap();
        assert_eq!(link_words("slow", &links).unwrap(), links["slow"].words());
        assert_eq!(link_words("lte", &links).unwrap(), "lte");
        assert_eq!(link_words("delay=1ms", &links).unwrap(), "delay=1ms");
        let missing = link_words("fast", &links).unwrap_err().to_string();
        assert!(missing.contains("[link.fast]"), "{missing}");
    }

    #[test]
    fn links_of_the_topology_are_checked() {
        for (name, text, expected) in [
            ("slow", "rat = \"1Mb/s\"", "did you mean rate?"),
            ("dsl", "delay = \"1ms\"", "built in"),
            ("a b", "delay = \"1ms\"", "is not a name"),
        ] {
            let links = [(name.to_owned(), toml::from_str(text).unwrap())].into();
            let error = check_links(&links).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
