//! `cargo xtask rpm`: an RPM package, by `rpmbuild` and `packaging/rpm/toklat.spec`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::files::{From, Item, Kind, Place, items, lay_out};
use super::{Options, VERSION, deb, last_commit, need};
use crate::tool;

/// Directories that go with the package, and those below them. That of CNI's plugins may belong to
/// other packages, too.
const OWN: [&str; 2] = ["toklat", "cni"];

/// Packs.
pub fn run(options: &Options) -> Result<()> {
    need("rpm")?;
    let workshop = options.workshop("rpm")?;
    let items = items(Place::Rpm, &options.sources(&workshop)?)?;
    let root = workshop.join("root");
    lay_out(&items, &root)?;
    for item in items.iter().filter(|item| item.is_built) {
        deb::strip(&root.join(&item.to))?;
    }
    let files = workshop.join("files");
    fs::write(&files, list(&items)).with_context(|| files.display().to_string())?;
    let mut build = tool::command("rpmbuild", &["-bb", "--quiet", "--nodeps"]);
    let define = [
        ("toklat_version", VERSION.to_owned()),
        ("tree", root.display().to_string()),
        ("list", files.display().to_string()),
        ("_topdir", workshop.display().to_string()),
        ("_rpmdir", options.out("generate-rpm")?.display().to_string()),
        ("_build_name_fmt", "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm".to_owned()),
        // Packing quickly matters more than a small package of tests.
        ("_binary_payload", if options.dev { "w.ufdio" } else { "w19.zstdio" }.to_owned()),
        // One commit gives one package.
        ("use_source_date_epoch_as_buildtime", "1".to_owned()),
        ("clamp_mtime_to_source_date_epoch", "1".to_owned()),
    ];
    for (name, value) in define {
        build.arg("--define").arg(format!("{name} {value}"));
    }
    if let Some(time) = last_commit("%ct") {
        build.env("SOURCE_DATE_EPOCH", time);
    }
    tool::run(build.arg("packaging/rpm/toklat.spec"))
}

/// What rpmbuild reads of the files: their kinds, modes and names, and the package's own
/// directories.
fn list(items: &[Item]) -> String {
    let mut list = String::new();
    for item in items {
        list += match item.kind {
            Kind::File => "",
            Kind::Config => "%config(noreplace) ",
            Kind::Doc => "%doc ",
        };
        if let From::File(_) = item.from {
            list += &format!("%attr({:o},root,root) ", item.mode);
        }
        list += &format!("/{}\n", item.to.display());
    }
    let directories: BTreeSet<PathBuf> = items.iter().flat_map(own_directories).collect();
    for directory in directories {
        list += &format!("%dir %attr(755,root,root) /{}\n", directory.display());
    }
    list
}

/// The directories above a file that go with the package.
fn own_directories(item: &Item) -> impl Iterator<Item = PathBuf> {
    let above = item.to.ancestors().skip(1);
    let is_own = |path: &&Path| path.iter().any(|part| OWN.iter().any(|own| part == *own));
    above.filter(is_own).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rpm_reads_kinds_and_the_directories_that_are_toklats() {
        let file = |to: &str, mode, kind| {
            let from = From::File(to.into());
            Item { from, to: to.into(), mode, kind, is_built: false }
        };
        let link = From::Link("../../bin/toklat".into());
        let items = [
            file("usr/bin/toklat", 0o755, Kind::File),
            file("etc/toklat/net.toml", 0o644, Kind::Config),
            file("usr/share/doc/toklat/examples/net.toml", 0o644, Kind::Doc),
            Item { from: link, ..file("usr/libexec/cni/toklat-cni", 0o777, Kind::File) },
        ];
        assert_eq!(
            list(&items),
            "%attr(755,root,root) /usr/bin/toklat\n\
             %config(noreplace) %attr(644,root,root) /etc/toklat/net.toml\n\
             %doc %attr(644,root,root) /usr/share/doc/toklat/examples/net.toml\n\
             /usr/libexec/cni/toklat-cni\n\
             %dir %attr(755,root,root) /etc/toklat\n\
             %dir %attr(755,root,root) /usr/libexec/cni\n\
             %dir %attr(755,root,root) /usr/share/doc/toklat\n\
             %dir %attr(755,root,root) /usr/share/doc/toklat/examples\n"
        );
    }
}
