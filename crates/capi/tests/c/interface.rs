//! Tests that header, version map and library agree.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use netring::Interest;
use netring::layout::Fault;

use harness::{must, root};

use crate::kit::{compile, header, pkg_config, prefix, symbols};

/// Returns the functions that the header declares: names before a parenthesis, outside of comments.
fn declared() -> BTreeSet<String> {
    let header = header();
    let code = header.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code));
    let code: String = code.collect();
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let before = code.split('(').map(|before| before.rsplit(|c| !is_of_name(c)).next());
    let names = before.flatten().filter(|name| name.starts_with("toklat_"));
    names.map(str::to_owned).collect()
}

#[test]
fn the_library_exports_what_the_header_declares_in_its_version() {
    let exported = symbols(&prefix().join("lib/libtoklat.so"));
    let declared: BTreeSet<_> =
        declared().into_iter().map(|name| format!("{name}@@TOKLAT_0.1")).collect();
    assert!(declared.len() > 20, "{declared:?}");
    assert_eq!(exported, declared);
}

/// A program that names every function is compiled and linked without a warning.
#[test]
fn every_declared_function_has_an_address() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = String::from("#include <toklat.h>\nvoid (*all[])(void) = {\n");
    for name in declared() {
        writeln!(source, "    (void (*)(void)){name},").unwrap();
    }
    source += "};\nint main(void) { for (unsigned i = 0; i < sizeof(all) / sizeof(*all); i++)\n\
               if (!all[i]) return 1;\nreturn 0; }\n";
    let file = dir.path().join("all.c");
    fs::write(&file, source).unwrap();
    must(&mut compile(&file, &dir.path().join("all")));
}

/// The numbers in the header are those of the ring library.
#[test]
fn constants_agree() {
    let header = header();
    let defined = |name: &str| {
        let line = header.lines().find(|line| line.starts_with(&format!("#define TOKLAT_{name} ")));
        let value = line.unwrap_or_else(|| panic!("{name}")).split_whitespace().nth(2).unwrap();
        value.trim_end_matches('u').parse::<u32>().unwrap()
    };
    assert_eq!(defined("READ"), u32::from(Interest::READ.bits()));
    assert_eq!(defined("WRITE"), u32::from(Interest::WRITE.bits()));
    let mut faults = 0;
    while let Some(fault) = Fault::from_number(faults + 1) {
        let spelled = |c: char| if c.is_uppercase() { format!("_{c}") } else { c.to_string() };
        let name: String = format!("{fault:?}").chars().map(spelled).collect();
        faults += 1;
        assert_eq!(defined(&format!("FAULT{}", name.to_uppercase())), faults);
    }
    assert_eq!(header.matches("#define TOKLAT_FAULT_").count(), faults as usize);
}

#[test]
fn the_shared_library_has_a_soname_and_needs_only_the_system() {
    let mut readelf = Command::new("readelf");
    let told = must(readelf.arg("-dW").arg(prefix().join("lib/libtoklat.so")));
    assert!(told.contains("soname: [libtoklat.so.0]"), "{told}");
    for line in told.lines().filter(|line| line.contains("(NEEDED)")) {
        assert!(
            ["libc.so", "libgcc_s.so", "libm.so", "ld-linux"].iter().any(|lib| line.contains(lib)),
            "{line}"
        );
    }
}

#[test]
fn pkg_config_names_version_and_place() {
    assert_eq!(pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let libs = pkg_config(&["--libs"]);
    assert!(libs.contains(&"-ltoklat".to_owned()), "{libs:?}");
}

/// The static library links alone, and a C++ compiler takes the header.
#[test]
fn programs_link_statically_and_in_cxx() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("sink");
    let mut cc = Command::new("cc");
    cc.arg(root().join("examples/c/sink.c")).args(pkg_config(&["--cflags"]));
    cc.arg(prefix().join("lib/libtoklat.a"));
    let private = pkg_config(&["--static", "--libs-only-l"]);
    cc.args(private.iter().filter(|lib| *lib != "-ltoklat")).arg("-o").arg(&program);
    must(&mut cc);
    let usage = Command::new(&program).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));

    let mut cxx = Command::new("c++");
    cxx.args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++"]);
    must(cxx.arg(prefix().join("include/toklat.h")));
}
