//! The container image, built by its own recipe on a Debian that is made here.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use harness::{PATIENCE, done, library, must, run, skip};
use serde_json::Value;

/// The image that the container image is built from.
const BASE: &str = "localhost/toklat-debian";
/// The image.
const IMAGE: &str = "localhost/toklat";
/// The name of the container that runs the image.
const CONTAINER: &str = "toklat-test";

/// A store of images that belongs to the test.
struct Store(tempfile::TempDir);

impl Store {
    fn buildah(&self, args: &[&str]) -> Command {
        let mut buildah = Command::new("buildah");
        buildah.arg("--root").arg(self.0.path().join("images"));
        buildah.arg("--runroot").arg(self.0.path().join("run"));
        buildah.args(["--storage-driver", "vfs"]).args(args);
        buildah
    }

    /// Runs buildah, and returns what it printed.
    fn output(&self, args: &[&str]) -> String {
        let output = run(&mut self.buildah(args)).unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Runs a program in the container, with a volume at /run/toklat as the recipe says.
    fn inside(&self, volume: &Path, program: &[String]) -> Command {
        let volume = format!("{}:/run/toklat", volume.display());
        let mut command = self.buildah(&["run", "--isolation", "chroot", "--volume", &volume]);
        command.args([CONTAINER, "--"]).args(program);
        command
    }
}

/// The root directory of a Debian like this machine's, made once. Otherwise returns what is
/// missing.
fn debian() -> Result<PathBuf, &'static str> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("container-debian.tar");
    if root.exists() {
        return Ok(root);
    }
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let name = name.filter(|_| release.contains("ID=debian")).ok_or("this is no Debian")?;
    let made = root.with_extension("new.tar");
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=essential", name]).arg(&made);
    if !done(&mut make) {
        return Err("mmdebstrap could not make a Debian: is a mirror reachable?");
    }
    std::fs::rename(made, &root).unwrap();
    Ok(root)
}

/// The reason why the image cannot be built here.
fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may make a Debian and mount images");
    }
    let programs = [
        ("buildah", "buildah is missing; as root: apt-get install buildah"),
        ("mmdebstrap", "mmdebstrap is missing; as root: apt-get install mmdebstrap"),
    ];
    let missing = programs.into_iter().find(|(name, _)| !done(Command::new(name).arg("--version")));
    missing.map(|(_, why)| why)
}

/// The programs as the recipe's first stage leaves them: this build's.
fn built(dir: &Path) -> PathBuf {
    let [bin, lib] = ["bin", "lib/toklat"].map(|place| dir.join("toklat/installed").join(place));
    for (place, file) in [(bin, harness::program()), (lib, library())] {
        std::fs::create_dir_all(&place).unwrap();
        std::fs::copy(file, place.join(file.file_name().unwrap())).unwrap();
    }
    dir.to_owned()
}

/// The words of a list in buildah's description of the image.
fn words(config: &Value, list: &str) -> Vec<String> {
    let list = config[list].as_array().unwrap_or_else(|| panic!("{list}: {config}"));
    list.iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// The daemon in the container, which ends with the test even if the test fails.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Objective: the recipe builds an image whose own command is a daemon that clients reach by its
/// volume.
///
/// Steps: the recipe's steps behind the compilation run on a Debian from packages; the image's
/// entry point and command start the daemon; in the same container a switch is added, as the recipe
/// says, and a program is run; a tool outside reaches the daemon by its volume, and stops it.
#[test]
fn the_recipe_builds_an_image_whose_daemon_runs() {
    let name = "the_recipe_builds_an_image_whose_daemon_runs";
    if let Some(why) = missing() {
        return skip(name, why);
    }
    let debian = match debian() {
        Ok(debian) => debian,
        Err(why) => return skip(name, why),
    };
    let store = Store(tempfile::tempdir().unwrap());
    let base = store.output(&["from", "scratch"]);
    must(&mut store.buildah(&["add", "--quiet", &base, debian.to_str().unwrap(), "/"]));
    must(&mut store.buildah(&["commit", "--quiet", &base, BASE]));
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let stage = format!("build={}", built(&store.0.path().join("built")).display());
    let debian = format!("DEBIAN={BASE}");
    let mut build = store.buildah(&["build", "--isolation", "chroot", "--pull-never"]);
    build.args(["--build-arg", &debian, "--build-context", &stage, "--tag", IMAGE]);
    must(build.arg("--file").arg(tree.join("packaging/Containerfile")).arg(&tree));
    store.output(&["from", "--pull-never", "--name", CONTAINER, IMAGE]);

    let known: Value =
        serde_json::from_str(&store.output(&["inspect", "--type", "image", IMAGE])).unwrap();
    let config = &known["OCIv1"]["config"];
    assert_eq!(config["StopSignal"], "SIGTERM", "{config}");
    let command = [words(config, "Entrypoint"), words(config, "Cmd")].concat();
    assert_eq!(command[0], "/usr/bin/toklat");
    let volume = store.0.path().join("volume");
    std::fs::create_dir(&volume).unwrap();
    let log = std::fs::File::create(store.0.path().join("log")).unwrap();
    let mut daemon = store.inside(&volume, &command);
    daemon.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let mut daemon = Ends(daemon.spawn().unwrap());
    let said = || std::fs::read_to_string(store.0.path().join("log")).unwrap();
    let started = Instant::now();
    while std::os::unix::net::UnixStream::connect(volume.join("control.sock")).is_err() {
        assert!(daemon.0.try_wait().unwrap().is_none(), "{}", said());
        assert!(started.elapsed() < PATIENCE, "{}", said());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let inside = |line: &str| {
        let program: Vec<_> = line.split(' ').map(str::to_owned).collect();
        must(&mut store.inside(&volume, &program));
    };
    inside("toklat switch add vale7");
    inside("toklat run -- true");
    inside("test -L /usr/bin/toklat-cni");
    inside("test -d /var/lib/toklat");
    let host = |args: &[&str]| {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_toklat"));
        let output = run(tool.env("TOKLAT_DIR", &volume).args(args)).unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let switches: Value = serde_json::from_str(&host(&["switch", "show", "--json"])).unwrap();
    let running = |switch: &Value| switch["name"] == "vale7" && switch["state"] == "running";
    assert!(switches.as_array().unwrap().iter().any(running), "{switches}");
    host(&["stop"]);
    let status = harness::wait(&mut daemon.0, PATIENCE).expect("the daemon does not stop");
    assert!(status.success(), "{status}: {}", said());
}
