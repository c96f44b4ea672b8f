//! `toklat logs`: the daemon's log, wherever it is.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use crate::api::Status;
use client::{Client, ClientError, Global, Result};

/// Options of `toklat logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Go on with what is written from now on
    #[arg(long, short)]
    follow: bool,
    /// How many of the last lines
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    lines: usize,
}

/// Pause between two looks at a file that is followed.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes at a file's end in which its last lines are.
const TAIL: u64 = 4 << 20;

/// Where a daemon writes its log.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// The journal, as this unit; of the user's own systemd or of the machine's.
    Unit { name: String, of_user: bool },
    /// A file.
    File(PathBuf),
    /// A terminal, a pipe, or nowhere.
    Elsewhere(String),
}

/// Prints the last lines of the daemon's log.
///
/// # Errors
/// It cannot be read from here: says where it is.
pub fn run(args: &LogsArgs, global: &Global) -> Result {
    let asked = Client::connect(global).and_then(|mut client| client.get::<Status>("/v1/status"));
    let place = match asked {
        Ok(status) => place(Path::new("/proc"), status.pid),
        // The last lines say why the service does not run.
        Err(ClientError::NotRunning { start, .. }) if start.starts_with("systemctl ") => {
            Place::Unit { name: "toklat.service".into(), of_user: false }
        }
        Err(error) => return Err(error.into()),
    };
    match place {
        Place::Unit { name, of_user } => journal(args, &name, of_user),
        Place::File(file) => print(args, &file, &mut std::io::stdout().lock()),
        Place::Elsewhere(what) => bail!(
            "The daemon writes its log to {what}: look there, or start it with its log in a file: \
             toklat daemon 2>>toklat.log"
        ),
    }
}

/// Where a process writes its standard error.
fn place(proc: &Path, pid: u32) -> Place {
    let process = proc.join(pid.to_string());
    let file = process.join("fd/2");
    if std::fs::metadata(&file).is_ok_and(|there| there.is_file()) {
        return Place::File(file);
    }
    let groups = std::fs::read_to_string(process.join("cgroup")).unwrap_or_default();
    let unit = groups.lines().find_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        let name = path.rsplit('/').next().filter(|name| name.ends_with(".service"))?;
        Some(Place::Unit { name: name.to_owned(), of_user: path.starts_with("/user.slice") })
    });
    unit.unwrap_or_else(|| {
        Place::Elsewhere(match std::fs::read_link(&file) {
            Ok(to) => to.display().to_string(),
            Err(_) => format!("what only its user may see (process {pid})"),
        })
    })
}

fn journal(args: &LogsArgs, unit: &str, of_user: bool) -> Result {
    let mut command = Command::new("journalctl");
    command.args(of_user.then_some("--user")).args(["--unit", unit]);
    command.args(["--lines", &args.lines.to_string()]).args(args.follow.then_some("--follow"));
    let ended = command.status().context("Cannot run journalctl, which reads the log")?;
    anyhow::ensure!(ended.success(), "journalctl ended with {ended}");
    Ok(())
}

/// Prints the last lines of a file, and, if asked, what is added to it.
fn print(args: &LogsArgs, file: &Path, to: &mut impl Write) -> Result {
    let open = File::open(file).with_context(|| {
        format!("Cannot read the daemon's log ({}); run this as its user", file.display())
    })?;
    let mut at = open.metadata()?.len();
    to.write_all(&last_lines(&open, at, args.lines)?)?;
    to.flush()?;
    if !args.follow {
        return Ok(());
    }
    loop {
        std::thread::sleep(PAUSE);
        let mut more = vec![0; 1 << 16];
        let read = open.read_at(&mut more, at)?;
        to.write_all(&more[..read])?;
        to.flush()?;
        at += read as u64;
    }
}

fn last_lines(mut file: &File, end: u64, lines: usize) -> std::io::Result<Vec<u8>> {
    let start = end.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(start))?;
    let mut text = Vec::new();
    file.take(end - start).read_to_end(&mut text)?;
    let ends = text.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    // The end of the line before the first one that is wanted.
    let before = ends.map(|(at, _)| at).nth(lines);
    Ok(text.split_off(before.map_or(0, |at| at + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_a_file_are_printed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("log");
        std::fs::write(&file, "one\ntwo\nthree\n").unwrap();
        for (lines, said) in
            [(0, ""), (1, "three\n"), (2, "two\nthree\n"), (100, "one\ntwo\nthree\n")]
        {
            let mut printed = Vec::new();
            print(&LogsArgs { follow: false, lines }, &file, &mut printed).unwrap();
            assert_eq!(String::from_utf8(printed).unwrap(), said);
        }
    }

    #[test]
    fn a_daemon_of_a_unit_has_its_log_in_the_journal() {
        let proc = tempfile::tempdir().unwrap();
        let of = |groups: &str, to: &str| {
            let process = proc.path().join("7");
            let _ = std::fs::remove_dir_all(&process);
            std::fs::create_dir_all(process.join("fd")).unwrap();
            std::os::unix::fs::symlink(to, process.join("fd/2")).unwrap();
            std::fs::write(process.join("cgroup"), groups).unwrap();
            place(proc.path(), 7)
        };
        let unit = |of_user| Place::Unit { name: "toklat.service".into(), of_user };
        assert_eq!(of("0::/system.slice/toklat.service\n", "socket:[1]"), unit(false));
        let user = "0::/user.slice/user-7.slice/user@7.service/app.slice/toklat.service\n";
        assert_eq!(of(user, "socket:[1]"), unit(true));
        let shell = "0::/user.slice/user-7.slice/session-3.scope\n";
        assert_eq!(of(shell, "/dev/pts/3x"), Place::Elsewhere("/dev/pts/3x".into()));
        let log = proc.path().join("log");
        std::fs::write(&log, "").unwrap();
        let there = of("0::/system.slice/toklat.service\n", log.to_str().unwrap());
        assert_eq!(there, Place::File(proc.path().join("7/fd/2")));
        assert!(matches!(place(proc.path(), 8), Place::Elsewhere(_)));
    }
}
