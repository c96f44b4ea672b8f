//! Bars: what a row's figure must clear. A row's text and its verdict come from the same numbers.

/// A bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    /// The least ratio to the peer; more is better.
    Ratio(f64),
    /// The least value.
    Least(f64),
    /// The greatest value.
    Most(f64),
    /// The greatest value beyond the peer's.
    Beyond(f64),
}

/// What a figure must clear: up to two bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    limits: [Option<Limit>; 2],
    /// Whether the bar is only for machines with KVM.
    kvm: bool,
}

/// What is compared with a bar.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// The figure.
    pub value: Option<f64>,
    /// The peer's figure.
    pub peer: Option<f64>,
    /// The ratio of both.
    pub ratio: Option<f64>,
}

impl Bar {
    /// The row is only reported.
    pub const NONE: Self = Self { limits: [None, None], kvm: false };

    const fn one(limit: Limit) -> Self {
        Self { limits: [Some(limit), None], kvm: false }
    }

    /// The ratio to the peer is at least this.
    pub const fn ratio(least: f64) -> Self {
        Self::one(Limit::Ratio(least))
    }

    /// The value is at least this.
    pub const fn least(least: f64) -> Self {
        Self::one(Limit::Least(least))
    }

    /// The value is at most this.
    pub const fn most(most: f64) -> Self {
        Self::one(Limit::Most(most))
    }

    /// The value exceeds the peer's by this at most.
    pub const fn beyond(most: f64) -> Self {
        Self::one(Limit::Beyond(most))
    }

    /// The ratio to the peer is at least this, too.
    pub const fn and_ratio(self, least: f64) -> Self {
        Self { limits: [self.limits[0], Some(Limit::Ratio(least))], ..self }
    }

    /// Without KVM, the row is only reported.
    pub const fn with_kvm(self) -> Self {
        Self { kvm: true, ..self }
    }

    /// Describes the bar; `None` without one.
    pub fn text(&self) -> Option<String> {
        let all: Vec<String> = self.limits.iter().flatten().map(Limit::text).collect();
        let kvm = if self.kvm { " with KVM" } else { "" };
        (!all.is_empty()).then(|| format!("{}{kvm}", all.join(", ")))
    }

    /// Returns true if the bar is to be cleared on a machine with or without KVM.
    pub fn counts(&self, has_kvm: bool) -> bool {
        self.limits[0].is_some() && (has_kvm || !self.kvm)
    }

    /// Returns true if `measured` misses the bar; `None` if there is nothing to compare with it.
    pub fn missed(&self, measured: Measured) -> Option<bool> {
        let mut missed = None;
        for limit in self.limits.iter().flatten() {
            missed = Some(missed.unwrap_or(false) | limit.missed(measured)?);
        }
        missed
    }
}

impl Limit {
    fn text(&self) -> String {
        match self {
            Self::Ratio(least) => format!("ratio >= {least}"),
            Self::Least(least) => format!(">= {least}"),
            Self::Most(most) if *most == 0.0 => "0".to_owned(),
            Self::Most(most) => format!("<= {most}"),
            Self::Beyond(most) => format!("<= peer + {most}"),
        }
    }

    fn missed(&self, measured: Measured) -> Option<bool> {
        Some(match self {
            Self::Ratio(least) => measured.ratio? < *least,
            Self::Least(least) => measured.value? < *least,
            Self::Most(most) => measured.value? > *most,
            Self::Beyond(most) => measured.value? - measured.peer? > *most,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(value: f64, peer: f64) -> Measured {
        Measured { value: Some(value), peer: Some(peer), ratio: Some(value / peer) }
    }

    #[test]
    fn the_text_and_the_verdict_of_a_bar_come_from_one_number() {
        for (bar, text, clears, misses) in [
            (Bar::ratio(0.7), "ratio >= 0.7", measured(7.0, 10.0), measured(6.9, 10.0)),
            (Bar::least(20.0), ">= 20", measured(20.0, 1.0), measured(19.9, 1.0)),
            (Bar::most(50.0), "<= 50", measured(50.0, 1.0), measured(50.1, 1.0)),
            (Bar::most(0.0), "0", measured(0.0, 1.0), measured(0.1, 1.0)),
            (Bar::beyond(5.0), "<= peer + 5", measured(12.0, 7.0), measured(12.1, 7.0)),
        ] {
            assert_eq!(bar.text().as_deref(), Some(text));
            assert_eq!(
                (bar.missed(clears), bar.missed(misses)),
                (Some(false), Some(true)),
                "{text}"
            );
            assert_eq!(bar.missed(Measured::default()), None, "{text}");
        }
    }

    #[test]
    fn both_bounds_of_a_bar_must_be_cleared_and_measured() {
        let bar = Bar::least(5.0).and_ratio(1.5);
        assert_eq!(bar.text().as_deref(), Some(">= 5, ratio >= 1.5"));
        assert_eq!(bar.missed(measured(6.0, 4.0)), Some(false));
        assert_eq!(bar.missed(measured(4.0, 1.0)), Some(true));
        assert_eq!(bar.missed(measured(6.0, 5.0)), Some(true));
        assert_eq!(bar.missed(Measured { value: Some(6.0), ..Measured::default() }), None);
    }

    #[test]
    fn a_bar_for_kvm_counts_only_there_and_no_bar_counts_nowhere() {
        let bar = Bar::ratio(1.5).with_kvm();
        assert_eq!(bar.text().as_deref(), Some("ratio >= 1.5 with KVM"));
        assert!(bar.counts(true) && !bar.counts(false) && Bar::ratio(1.0).counts(false));
        assert!(!Bar::NONE.counts(true));
        assert_eq!((Bar::NONE.text(), Bar::NONE.missed(measured(1.0, 1.0))), (None, None));
    }
}
