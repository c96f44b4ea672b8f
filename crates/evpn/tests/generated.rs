//! The code that was generated from `proto/gobgp.proto` is the one that is checked in.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Generates code into `dir`, and returns its text.
fn generate(server: bool, dir: &Path) -> String {
    let descriptors = protox::compile(["gobgp.proto"], [root().join("proto")]).unwrap();
    let mut builder = tonic_prost_build::configure()
        .build_transport(false)
        .build_client(!server)
        .build_server(server)
        .out_dir(dir);
    if server {
        builder = builder.extern_path(".api", "::evpn::gobgp");
    }
    builder.compile_fds(descriptors).unwrap();
    let file = dir.join("api.rs");
    let settings = root().join("../../rustfmt.toml");
    let formatted = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .args([&settings, &file])
        .status();
    assert!(formatted.unwrap().success());
    std::fs::read_to_string(file).unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// With `TOKLAT_BLESS` set it writes the files instead.
#[test]
fn the_checked_in_code_is_what_the_proto_file_generates() {
    let dir = tempfile::tempdir().unwrap();
    for (server, file) in [(false, "src/gobgp.rs"), (true, "tests/fake/gobgp.rs")] {
        let text = generate(server, dir.path());
        let path = root().join(file);
        if std::env::var_os("TOKLAT_BLESS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap();
        assert!(there == text, "{file} is another one: run this test with TOKLAT_BLESS=1");
    }
}
