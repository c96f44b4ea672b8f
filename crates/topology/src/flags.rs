//! The command line's flags for kinds of ports, derived from the structs of their settings.
//!
//! The flag that names a kind has the kind's word as its id. Its help comes from the struct and its
//! field. A flag that several kinds share is one flag, parsed as the chosen kind requires.

use clap::builder::{Resettable, StyledStr, ValueParser};
use clap::error::{ContextKind, Error, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, FromArgMatches};

use crate::{Invalid, PortKind};

const HEADING: &str =
    "What the port is attached to (default: the program that opens it by its name)";

/// The kind of a port, from the command line.
#[derive(Clone, Debug, Default)]
pub struct KindOptions {
    kind: PortKind,
}

impl KindOptions {
    /// The kind of a port called `port`, without its switch. Paths are absolute.
    ///
    /// # Errors
    /// A path has no absolute form, or an address is invalid.
    pub fn kind(self, port: &str) -> Result<PortKind, Invalid> {
        let mut kind = self.kind;
        kind.complete(port)?;
        Ok(kind)
    }
}

/// A kind, its flags, and the function that parses them.
struct Row {
    word: &'static str,
    command: Command,
    read: fn(&ArgMatches) -> Result<PortKind, Error>,
}

impl Row {
    fn flags(&self) -> impl Iterator<Item = &Arg> {
        self.command.get_arguments()
    }

    /// The flag that names it.
    fn name(&self) -> String {
        self.flags().find(|flag| flag.get_id() == self.word).map_or_else(String::new, long)
    }
}

fn command(word: &'static str) -> Command {
    Command::new(word).no_binary_name(true).disable_help_flag(true).disable_version_flag(true)
}

macro_rules! define {
    (
        plain { $(#[doc = $about:literal] $(#[$default:meta])? $Plain:ident $plain:literal,)* }
        set { $($Set:ident $set:literal,)* }
    ) => {
        fn rows() -> Vec<Row> {
            let plain = [$((PortKind::$Plain, Row {
                word: $plain,
                command: command($plain).about($about).arg(
                    Arg::new($plain).long($plain).action(ArgAction::SetTrue),
                ),
                read: |_| Ok(PortKind::$Plain),
            }),)*];
            // Without a flag, the port is of the default kind.
            let plain = plain.into_iter().filter(|(kind, _)| *kind != PortKind::default());
            let set = [$(Row {
                word: $set,
                command: crate::$Set::augment_args(command($set)),
                read: |matches| Ok(crate::$Set::from_arg_matches(matches)?.into()),
            },)*];
            set.into_iter().chain(plain.map(|(_, row)| row)).collect()
        }
    };
}
crate::with_kinds!(define);

/// A flag, and the kinds that share it.
struct Flag {
    arg: Arg,
    of: Vec<usize>,
}

/// All flags, each once.
fn flags(rows: &[Row]) -> Vec<Flag> {
    let mut flags: Vec<Flag> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        for arg in row.flags() {
            match flags.iter_mut().find(|flag| flag.arg.get_id() == arg.get_id()) {
                Some(flag) => flag.of.push(at),
                None => flags.push(Flag { arg: arg.clone(), of: vec![at] }),
            }
        }
    }
    flags
}

fn long(arg: &Arg) -> String {
    format!("--{}", arg.get_long().unwrap_or_default())
}

fn text(styled: Option<&StyledStr>) -> String {
    styled.map(ToString::to_string).unwrap_or_default()
}

/// A flag's help. The kind's own sentence comes first if the flag names a kind.
fn help(rows: &[Row], flag: &Flag) -> String {
    let id = flag.arg.get_id();
    let of_row = |at: &usize| {
        let row = &rows[*at];
        let arg = row.flags().find(|arg| arg.get_id() == id).unwrap_or(&flag.arg);
        let help = text(arg.get_help());
        let default = arg.get_default_values().first().filter(|_| arg.get_action().takes_values());
        let default = default.map(|value| format!(" [default: {}]", value.to_string_lossy()));
        match (id == row.word, help.is_empty(), flag.of.len()) {
            (true, true, _) => text(row.command.get_about()),
            (true, false, _) => format!("{}. {help}", text(row.command.get_about())),
            // For a flag of one kind, clap prints the default itself.
            (false, _, 1) => help,
            (false, ..) => help + &default.unwrap_or_default(),
        }
    };
    let mut parts: Vec<String> = flag.of.iter().map(of_row).collect();
    if parts.windows(2).all(|pair| pair[0] == pair[1]) {
        return parts.swap_remove(0);
    }
    let named =
        flag.of.iter().zip(parts).map(|(at, part)| format!("With {}: {part}", rows[*at].name()));
    named.collect::<Vec<_>>().join("; ")
}

impl Args for KindOptions {
    fn augment_args(to: Command) -> Command {
        let rows = rows();
        let all = flags(&rows).into_iter().map(|flag| {
            let help = help(&rows, &flag);
            let takes_values = flag.arg.get_action().takes_values();
            // What a kind requires, its own command asks for once the kind is known.
            let arg = flag.arg.required(false).required_unless_present(Resettable::Reset);
            let mut arg = arg.help(help).help_heading(HEADING);
            if flag.of.len() > 1 && takes_values {
                arg = arg.value_parser(ValueParser::string()).default_values([""; 0]);
            }
            arg
        });
        let names = rows.iter().map(|row| row.word);
        to.args(all).group(ArgGroup::new("kind").args(names))
    }

    fn augment_args_for_update(to: Command) -> Command {
        Self::augment_args(to)
    }
}

impl FromArgMatches for KindOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let rows = rows();
        let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let named = rows.iter().position(|row| is_given(row.word));
        for Flag { arg, of } in flags(&rows) {
            if is_given(arg.get_id().as_str()) && named.is_none_or(|named| !of.contains(&named)) {
                let names: Vec<_> = of.iter().map(|at| rows[*at].name()).collect();
                let what = format!("{} goes with {}", long(&arg), names.join(" or "));
                return Err(Error::raw(ErrorKind::MissingRequiredArgument, what));
            }
        }
        let Some(row) = named.and_then(|named| rows.get(named)) else {
            return Ok(Self::default());
        };
        let given = row.flags().filter(|arg| is_given(arg.get_id().as_str()));
        let words = given.flat_map(|arg| said(arg, matches));
        let read = row.command.clone().try_get_matches_from(words);
        let kind = read.and_then(|matches| (row.read)(&matches)).map_err(|mut error| {
            // The usage of the kind's command would show that kind's flags only.
            error.remove(ContextKind::Usage);
            error
        })?;
        Ok(Self { kind })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A flag as it was given, once for each occurrence.
fn said(arg: &Arg, matches: &ArgMatches) -> Vec<std::ffi::OsString> {
    let name = long(arg);
    if !arg.get_action().takes_values() {
        return vec![name.into()];
    }
    let times = matches.get_raw_occurrences(arg.get_id().as_str()).into_iter().flatten();
    let word = |value: Option<&std::ffi::OsStr>| {
        let mut word = std::ffi::OsString::from(&name);
        if let Some(value) = value {
            word.push("=");
            word.push(value);
        }
        word
    };
    times.map(|mut values| word(values.next())).collect()
}
