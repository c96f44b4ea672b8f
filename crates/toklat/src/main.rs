//! The binary: everything is in the library, where tests and fuzz targets reach it too.

fn main() -> std::process::ExitCode {
    toklat::cli::main()
}
