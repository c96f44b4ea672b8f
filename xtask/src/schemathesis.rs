//! The control API held against its own description, by Schemathesis (from PyPI): requests made of
//! the types that `/openapi.json` names, good and bad ones, to a daemon of their own.

use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::setup;
use crate::tool::{self, cargo, command};

/// The version that finds nothing; a newer one may look for more.
const PACKAGE: &str = "schemathesis==4.32.5";
const SECONDS: u32 = 300;
/// User id of the daemon if root starts it, as requests ask it to write files and to make taps.
const UNPRIVILEGED: u32 = 65_534;
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Where its daemon ends; and two checks that know too little: that nothing is refused which the
/// types allow (files that cannot be opened and addresses used twice are), and that all is found in
/// a switch that was made just now (its ports are not).
const EXCLUDED: &[&str] = &[
    "--exclude-path",
    "/v1/stop",
    "--exclude-checks",
    "positive_data_acceptance,ensure_resource_availability",
];

/// Runs it for so long.
pub fn run(seconds: Option<&str>) -> Result<()> {
    let seconds = match seconds {
        Some(text) => text.parse().with_context(|| format!("{text} is not a number of seconds"))?,
        None => SECONDS,
    };
    let program = match make() {
        Ok(program) => program,
        Err(error) => {
            println!("SKIPPED schemathesis: PyPI's {PACKAGE} cannot be had: {error:#}");
            return Ok(());
        }
    };
    tool::run(&mut cargo(&["build", "--quiet", "--package", "toklat"]))?;
    let mut daemon = Daemon::start()?;
    let report = tool::target().join("schemathesis-report");
    let mut ask = Command::new(program);
    ask.current_dir(&daemon.dir).arg("run").arg(format!("{}/openapi.json", daemon.url));
    ask.args([
        "--header",
        &format!("Authorization: Bearer {TOKEN}"),
        "--seed",
        "1",
        "--checks",
        "all",
    ]);
    ask.args(["--max-time", &seconds.to_string(), "--continue-on-failure", "--no-color"]);
    ask.arg("--report-dir").arg(report).args(EXCLUDED);
    let asked = tool::run(&mut ask);
    let ended = daemon.child.try_wait()?;
    ensure!(ended.is_none(), "the daemon has ended ({ended:?})");
    let log = std::fs::read_to_string(daemon.dir.join("log"))?;
    if let Some(line) = log.lines().find(|line| line.contains("panicked")) {
        bail!("the daemon: {line}");
    }
    asked
}

/// The program, in an environment of its own, which is made if it is not there.
fn make() -> Result<PathBuf> {
    let dir = tool::target().join("schemathesis");
    let program = dir.join("bin/schemathesis");
    if tool::succeeds(Command::new(&program).arg("--version")) {
        return Ok(program);
    }
    let dir = dir.to_string_lossy();
    tool::run(&mut command("python3", &["-m", "venv", "--clear", &dir]))?;
    tool::run(&mut command(&format!("{dir}/bin/pip"), &["install", "--quiet", PACKAGE]))?;
    Ok(program)
}

/// A daemon that serves its API by TCP, from a directory of its own.
struct Daemon {
    dir: PathBuf,
    url: String,
    child: Child,
}

impl Daemon {
    fn start() -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("toklat-api-{}", std::process::id()));
        std::fs::create_dir(&dir)?;
        // A copy, which another user may run.
        let program = dir.join("toklat");
        std::fs::copy(tool::target().join("debug/toklat"), &program)?;
        let token = dir.join("token");
        std::fs::write(&token, TOKEN)?;
        std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600))?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let log = std::fs::File::create(dir.join("log"))?;
        let mut command = Command::new(&program);
        command.arg("--dir").arg(dir.join("run")).args(["daemon", "--listen-tcp", &address]);
        command.arg("--token-file").arg(&token).current_dir(&dir).env("HOME", &dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        if setup::is_root() {
            own(&dir)?;
            own(&token)?;
            command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
        }
        let child = command.spawn().context("The daemon cannot be started")?;
        let daemon = Self { dir, url: format!("http://{address}"), child };
        let began = Instant::now();
        while std::net::TcpStream::connect(&address).is_err() {
            ensure!(began.elapsed() < Duration::from_secs(60), "The daemon does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(daemon)
    }
}

fn own(path: &Path) -> Result<()> {
    Ok(chown(path, Some(UNPRIVILEGED), Some(UNPRIVILEGED))?)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // With its data processes: if it is killed, they stay.
        let mut stop = Command::new(self.dir.join("toklat"));
        tool::succeeds(stop.arg("--dir").arg(self.dir.join("run")).arg("stop"));
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
