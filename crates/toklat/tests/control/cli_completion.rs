//! Shell completions: bash and zsh complete themselves; for other shells, the tests run the
//! commands that the shells' scripts run.

use std::process::Command;

use harness::{Daemon, skip};

/// Returns what bash offers after this line.
fn bash(daemon: &Daemon, line: &str) -> Vec<String> {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_toklat"));
    let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
    // Bash divides words at colons; the script must not mind.
    let script = "source <(toklat completions bash); COMP_LINE=$1; COMP_POINT=${#1}; COMP_TYPE=9; \
                  _toklat toklat; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash", line]).env("PATH", path).env("TOKLAT_DIR", daemon.dir());
    let output = command.output().unwrap();
    assert!(output.stderr.is_empty(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_offers_switches_ports_and_models() {
    if Command::new("bash").arg("--version").output().is_err() {
        return skip("bash_offers_switches_ports_and_models", "bash is missing");
    }
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.alpha]\n[switch.vale0.port.beta]\n[switch.other.port.x]");
    let offers = |line: &str, wanted: &[&str]| assert_eq!(bash(&daemon, line), wanted, "{line}");
    offers("toklat switch rm va", &["vale0"]);
    offers("toklat switch rm ", &["other", "vale0"]);
    offers("toklat port rm ot", &["other:x"]);
    // Bash puts what is offered behind the colon.
    offers("toklat port rm vale0:a", &["alpha"]);
    offers("toklat port rm vale0:", &["alpha", "beta"]);
    offers("toklat port rm vale0:alpha vale0:b", &["beta"]);
    offers("toklat stats o", &["other", "other:x"]);
    offers("toklat port add vale0:n --nic 825", &["82540em", "82574l"]);
    offers("toklat port add vale0:n --nic=am79c97", &["am79c970a", "am79c973"]);
    offers("toklat vm run --switch v", &["vale0"]);
    offers("toklat upgr", &["upgrade"]);
    assert!(bash(&daemon, "toklat port add vale0:n --vlan").contains(&"--vlan-trunk".to_owned()));
}

/// A zsh at a terminal, which finds the script in its function path; what its completion adds for
/// the line is printed between angle brackets.
const ZSH: &str = r#"
zmodload zsh/zpty
mkdir $ZDOTDIR/functions
toklat completions zsh > $ZDOTDIR/functions/_toklat
zpty shell zsh -f -i
zpty -w shell 'stty -echo; PS1= PS2= RPS1=; unsetopt prompt_sp'
zpty -w shell 'fpath=($ZDOTDIR/functions $fpath); autoload -Uz compinit; compinit -u -D'
zpty -w shell 'compadd() {
    if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return; fi
    local -a hits; builtin compadd -A hits "$@"; offered+=($hits) }'
zpty -w shell 'send() { offered=(); zle complete-word; print
    print -l -- "<"${^offered}">" "[end]"; zle kill-buffer }'
zpty -w shell 'zle -N send; bindkey "^T" send; print "[ready]"'
zpty -r -m shell said '*\[ready\]*'
zpty -w -n shell "$1"$'\x14'
zpty -r -m shell said '*\[end\]*'
print -r -- "$said"
zpty -d shell
"#;

/// Returns what zsh offers after this line.
fn zsh(daemon: &Daemon, line: &str) -> Vec<String> {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_toklat"));
    let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new("timeout");
    command.args(["60", "zsh", "-f", "-c", ZSH, "zsh", line]).env("PATH", path);
    command.env("ZDOTDIR", home.path()).env("TOKLAT_DIR", daemon.dir());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let offered = said.lines().filter_map(|line| line.trim_end().strip_prefix('<'));
    offered.filter_map(|line| line.strip_suffix('>')).map(str::to_owned).collect()
}

#[test]
fn zsh_offers_switches_ports_and_models() {
    if Command::new("zsh").arg("--version").output().is_err() {
        return skip("zsh_offers_switches_ports_and_models", "zsh is missing");
    }
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.alpha]\n[switch.vale0.port.beta]\n[switch.other.port.x]");
    // On a busy machine, a zsh now and then completes nothing.
    let offers = |line: &str, wanted: &[&str]| {
        let offered = (0..10).map(|_| zsh(&daemon, line)).find(|offered| !offered.is_empty());
        assert_eq!(offered.unwrap_or_default(), wanted, "{line}");
    };
    offers("toklat switch rm va", &["vale0"]);
    offers("toklat port rm vale0:", &["vale0:alpha", "vale0:beta"]);
    offers("toklat port rm vale0:alpha vale0:b", &["vale0:beta"]);
    offers("toklat stats o", &["other", "other:x"]);
    offers("toklat port add vale0:n --nic 825", &["82540em", "82574l"]);
    offers("toklat upgr", &["upgrade"]);
}

#[test]
fn without_a_daemon_there_are_commands_and_no_complaint() {
    let mut daemon = Daemon::start();
    daemon.stop(&serde_json::json!({}));
    for (words, index, wanted) in
        [(&["upgr"][..], "1", "upgrade"), (&["switch", "rm", "x"], "3", "")]
    {
        let mut command = daemon.tool(&["--", "toklat"]);
        command.args(words).env("TOKLAT_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", index);
        let output = command.output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), wanted);
    }
}
