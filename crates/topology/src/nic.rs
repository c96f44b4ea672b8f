//! Settings of emulated network cards.

use std::fmt;
use std::str::FromStr;

use abi::nic::{self, NAMES, NicName};
use serde::de::{Deserializer, Error};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// A model of network card: one of the table [`NAMES`], written as its name.
#[derive(Clone, Copy)]
pub struct NicModel(&'static NicName);

impl NicModel {
    /// Intel 82540EM: the `e1000` of most guests.
    pub const I82540EM: Self = Self(&nic::I82540EM);
    /// Intel 82574L: `e1000e`.
    pub const I82574L: Self = Self(&nic::I82574L);
    /// AMD Am79C970A, PCnet-PCI II: `pcnet32`.
    pub const AM79C970A: Self = Self(&nic::AM79C970A);
    /// AMD Am79C973, PCnet-FAST III.
    pub const AM79C973: Self = Self(&nic::AM79C973);
    /// Denali's one-access NIC, the template for others: no guest has a driver for it.
    pub const ONE_ACCESS: Self = Self(&nic::ONE_ACCESS);

    /// Its names, and what a port may ask of it.
    #[must_use]
    pub const fn names(self) -> &'static NicName {
        self.0
    }

    /// All there are, in the table's order.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.into_iter().map(Self)
    }

    fn named(name: &str) -> Option<Self> {
        #[cfg(feature = "more-models")]
        let more = MORE.get().copied();
        #[cfg(not(feature = "more-models"))]
        let more = None;
        NAMES.into_iter().chain(more).find(|known| known.name == name).map(Self)
    }

    /// Adds a model to those there are. Only the first is added.
    #[cfg(feature = "more-models")]
    pub fn add(names: &'static NicName) -> Self {
        Self(MORE.get_or_init(|| names))
    }
}

#[cfg(feature = "more-models")]
static MORE: std::sync::OnceLock<&'static NicName> = std::sync::OnceLock::new();

impl PartialEq for NicModel {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for NicModel {}

impl fmt::Debug for NicModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

/// A name that no model of network card has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use one of {}", NAMES.map(|known| known.name).join(", "))]
pub struct NoModel;

impl FromStr for NicModel {
    type Err = NoModel;

    /// `pcnet` is QEMU's name for the one of its cards that is here, too.
    fn from_str(text: &str) -> Result<Self, NoModel> {
        let name = if text == "pcnet" { nic::AM79C970A.name } else { text };
        Self::named(name).ok_or(NoModel)
    }
}

impl Serialize for NicModel {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.0.name)
    }
}

impl<'de> Deserialize<'de> for NicModel {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let unknown = || {
            let known = NAMES.map(|known| format!("`{}`", known.name)).join(", ");
            D::Error::custom(format!("unknown variant `{name}`, expected one of {known}"))
        };
        Self::named(&name).ok_or_else(unknown)
    }
}

/// Frame combining: under heavy traffic, one doorbell serves several frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Combine {
    /// Frames that end the wait, 1 to 4,096.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = Combine::MAX_FRAMES)))]
    pub frames: u16,
    /// Maximum wait of a frame in microseconds, 1 to 10,000.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = Combine::MAX_DELAY_US)))]
    pub delay_us: u16,
}

impl Combine {
    /// The largest number of frames to wait for.
    pub const MAX_FRAMES: u16 = 4096;
    /// The longest wait in microseconds.
    pub const MAX_DELAY_US: u16 = 10_000;
}

impl FromStr for Combine {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let two = text.split_once(',').and_then(|(n, t)| Some((n.parse().ok()?, t.parse().ok()?)));
        let (frames, delay_us) = two.ok_or("use N,T: frames and microseconds, as in 16,50")?;
        Ok(Self { frames, delay_us })
    }
}

/// How doorbells reach an emulated network card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Doorbell {
    /// As messages, which wake a sleeping worker.
    #[default]
    Trap,
    /// As memory that the worker polls (e1000 family only).
    Shared,
}

impl FromStr for Doorbell {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "trap" => Ok(Self::Trap),
            "shared" => Ok(Self::Shared),
            _ => Err("use trap or shared"),
        }
    }
}

/// An emulated network card and its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NicConfig {
    /// The model that the guest sees.
    #[cfg_attr(feature = "clap", arg(id = "vfio_user", long = "nic", value_name = "MODEL"))]
    pub model: NicModel,
    /// Offer a shared status block (CSB) to drivers that support it. They then need fewer register
    /// accesses.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long))]
    pub csb: bool,
    /// Under heavy traffic, combine frames that the guest sends: wait for N frames, or for T
    /// microseconds.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N,T"))]
    pub combine: Option<Combine>,
    /// How doorbells reach the card: as messages (trap), or by memory that its worker polls
    /// (shared). A worker polls an idle card once a millisecond. With shared, each other register
    /// write waits until it is done.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "trap|shared", default_value = "trap"))]
    pub doorbell: Doorbell,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_written_as_its_name() {
        for model in NicModel::all() {
            let text = serde_json::to_string(&model).unwrap();
            assert_eq!(text, format!("{:?}", model.names().name));
            assert_eq!(serde_json::from_str::<NicModel>(&text).unwrap(), model);
            assert_eq!(model.names().name.parse(), Ok(model));
        }
        assert_eq!("pcnet".parse(), Ok(NicModel::AM79C970A));
        assert_eq!("rtl8139".parse::<NicModel>(), Err(NoModel));
        // Only people say so: what is stored has one name.
        let error = serde_json::from_str::<NicModel>("\"pcnet\"").unwrap_err().to_string();
        assert!(error.contains("expected one of `82540em`"), "{error}");
    }
}
