//! The options of `toklat port add` and `port set`: a port's rules ([`RuleOptions`]), and what it
//! is attached to ([`KindOptions`]), which are the topology's to say.

mod words;

pub use topology::flags::KindOptions;
pub use topology::rules::flags::RuleOptions;

pub use self::words::Or;
pub(super) use self::words::or_null;

#[cfg(test)]
mod tests;
