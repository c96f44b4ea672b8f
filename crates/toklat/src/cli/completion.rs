//! `toklat completions`: shell scripts that ask this program for completions. It offers commands
//! and options and, if a daemon runs, its switches and ports.

use std::ffi::OsStr;
use std::io::Write;

use abi::nic::NAMES;
use clap::CommandFactory;
use clap::builder::ValueParser;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};

use super::Cli;
use crate::api::{PortInfo, SwitchInfo};
use client::name::{Name, PortName, SwitchName};
use client::{Client, Global, Result};

/// The environment variable by which a script asks for completions.
const VARIABLE: &str = "TOKLAT_COMPLETE";

/// Bash splits words at colons and equals signs, which our names and options contain. So the script
/// passes the line unchanged, and strips from each candidate the part that bash takes for the
/// previous word.
const BASH: &str = r#"# What toklat offers, for bash.
_toklat() {
    local IFS=$' \t\n' line="${COMP_LINE:0:COMP_POINT}" words prefix
    read -ra words <<< "$line"
    if [[ $line == *[[:space:]] ]]; then
        words+=("")
    fi
    local current="${words[${#words[@]} - 1]}"
    prefix="${current%"${current##*[:=]}"}"
    IFS=$'\n'
    COMPREPLY=($(TOKLAT_COMPLETE=bash _CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1)) \
        toklat -- "${words[@]}" 2>/dev/null))
    COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
    if [[ -z $current && ${COMPREPLY[0]} != -* ]]; then
        # Options are offered behind a dash, or where there is nothing else.
        local candidate names=()
        for candidate in "${COMPREPLY[@]}"; do
            [[ $candidate == -* ]] || names+=("$candidate")
        done
        COMPREPLY=("${names[@]}")
    fi
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=/] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o default -o bashdefault -F _toklat toklat
"#;

/// Zsh calls a file of its function path as the function the first time.
const ZSH_END: &str = r#"
if [ "${funcstack[1]}" = _toklat ]; then
    _clap_dynamic_completer_toklat "$@"
fi
"#;

/// Options of `toklat completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    toklat completions bash > ~/.local/share/bash-completion/completions/toklat\n  \
    toklat completions fish > ~/.config/fish/completions/toklat.fish\n  \
    toklat completions zsh > ~/.zfunc/_toklat")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_parser = ["bash", "elvish", "fish", "powershell", "zsh"])]
    shell: String,
}

/// Prints a completion script.
///
/// # Errors
/// If standard output cannot be written.
pub fn completions(args: &CompletionsArgs) -> Result {
    let mut script = Vec::new();
    if args.shell == "bash" {
        script.extend(BASH.bytes());
    } else if let Some(shell) = Shells::builtins().completer(&args.shell) {
        shell.write_registration(VARIABLE, "toklat", "toklat", "toklat", &mut script)?;
    }
    if args.shell == "zsh" {
        script.extend(ZSH_END.bytes());
    }
    std::io::stdout().write_all(&script)?;
    Ok(())
}

/// Answers a completion script and ends the process, if a script asks.
pub fn answer() {
    CompleteEnv::with_factory(|| with_names(Cli::command())).var(VARIABLE).complete();
}

/// The command, with completers for arguments that name our objects.
fn with_names(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let takes = arg.get_value_parser();
        if is::<PortName>(takes) {
            arg.add(ArgValueCompleter::new(|start: &OsStr| offer(start, ports())))
        } else if is::<SwitchName>(takes) {
            arg.add(ArgValueCompleter::new(|start: &OsStr| offer(start, switches())))
        } else if is::<Name>(takes) {
            let both = |start: &OsStr| offer(start, switches().into_iter().chain(ports()));
            arg.add(ArgValueCompleter::new(both))
        } else if is::<dataplane::config::NicModel>(takes) {
            arg.add(ArgValueCompleter::new(|start: &OsStr| offer(start, models())))
        } else {
            arg
        }
    });
    command.mut_subcommands(with_names)
}

fn is<T: 'static>(parser: &ValueParser) -> bool {
    parser.type_id() == std::any::TypeId::of::<T>()
}

/// The names of emulated NICs, as `--nic` takes them.
fn models() -> impl Iterator<Item = String> {
    NAMES.iter().map(|known| known.name.to_owned()).chain(["pcnet".to_owned()])
}

/// The names that start with the given word.
fn offer(start: &OsStr, names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let start = start.to_string_lossy();
    let names = names.into_iter().filter(|name| name.starts_with(&*start));
    names.map(CompletionCandidate::new).collect()
}

/// The daemon, if it runs.
fn client() -> Option<Client> {
    let global = Global { dir: std::env::var_os("TOKLAT_DIR").map(Into::into), json: false };
    Client::connect(&global).ok().map(Client::without_progress)
}

fn names_of_switches(client: &mut Client) -> Vec<String> {
    let all: Vec<SwitchInfo> = client.get("/v1/switches").unwrap_or_default();
    all.into_iter().map(|switch| switch.name).collect()
}

fn switches() -> Vec<String> {
    client().map(|mut client| names_of_switches(&mut client)).unwrap_or_default()
}

fn ports() -> Vec<String> {
    let Some(mut client) = client() else { return Vec::new() };
    let mut names = Vec::new();
    for switch in names_of_switches(&mut client) {
        let ports: Vec<PortInfo> =
            client.get(&format!("/v1/switches/{switch}/ports")).unwrap_or_default();
        names.extend(ports.into_iter().map(|port| format!("{switch}:{}", port.name)));
    }
    names
}
