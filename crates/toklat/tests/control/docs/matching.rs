//! Which step belongs to which command of a document.

use std::collections::BTreeSet;
use std::path::Path;

use super::step::{How, Step};
use super::text::Command;

/// Gives each step its command. Fails for a command that no step has, and for a step that has no
/// command.
pub fn match_up(
    document: &str,
    commands: &[Command],
    steps: &[Step],
) -> Result<Vec<(Step, Option<Command>)>, String> {
    let (mut rest, mut matched) = (commands, Vec::new());
    let at = |command: &Command| format!("{document}:{}: {}", command.line, command.text);
    for step in steps {
        if step.is_own() {
            matched.push((*step, None));
            continue;
        }
        let (first, others) = rest
            .split_first()
            .ok_or_else(|| format!("{document} has no line for the step {:?}", step.start))?;
        if !first.text.starts_with(step.start) {
            let comes_later = others.iter().any(|other| other.text.starts_with(step.start));
            return Err(match comes_later {
                true => format!("{} is neither run nor listed", at(first)),
                false => {
                    format!("{document} has no line for {:?}; here is {}", step.start, at(first))
                }
            });
        }
        let belongs = |other: &&Command| step.whole && other.block == first.block;
        let more = others.iter().take_while(belongs).count();
        let mut command = first.clone();
        for other in &others[..more] {
            command.text += &format!("\n{}", other.text);
        }
        matched.push((*step, Some(command)));
        rest = &others[more..];
    }
    rest.first().map_or(Ok(matched), |left| Err(format!("{} is neither run nor listed", at(left))))
}

/// The names of tests in this table that no test has.
pub fn missing_tests(steps: &[Step], tests: &BTreeSet<String>) -> Vec<&'static str> {
    let names = steps.iter().filter_map(|step| match step.how {
        How::Test(name) => Some(name),
        _ => None,
    });
    names.filter(|name| !tests.contains(*name)).collect()
}

/// The names of all tests in the sources of this directory.
pub fn names_of_tests(directory: &Path, names: &mut BTreeSet<String>) {
    for entry in directory.read_dir().unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            names_of_tests(&path, names);
        } else if kind.is_file() && path.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let tests = text.split("#[test]").skip(1).filter_map(|rest| rest.split_once("fn "));
            names.extend(tests.filter_map(|(_, rest)| Some(rest.split_once('(')?.0.to_owned())));
        }
    }
}

#[test]
fn a_command_without_a_step_and_a_step_without_a_command_are_named() {
    use super::step::{ends, meanwhile, not, test};
    use super::text::commands;
    let found = commands("Text:\n\n    a 1\n    b\n\n    c\n    d\n");
    let of = |steps: &[Step]| match_up("x.md", &found, steps).map(|matched| matched.len());
    assert_eq!(of(&[ends("a"), meanwhile("e"), test("b", "t"), not("c", "d")]), Ok(4));
    let (new, last) = (of(&[ends("a"), not("c", "d")]), of(&[ends("a"), ends("b")]));
    assert_eq!(new.unwrap_err(), "x.md:4: b is neither run nor listed");
    assert_eq!(last.unwrap_err(), "x.md:6: c is neither run nor listed");
    let gone = of(&[ends("a"), ends("old"), ends("b"), not("c", "d")]).unwrap_err();
    assert_eq!(gone, "x.md has no line for \"old\"; here is x.md:4: b");
    let end = of(&[ends("a"), ends("b"), not("c", "d"), ends("old")]).unwrap_err();
    assert_eq!(end, "x.md has no line for the step \"old\"");
    assert_eq!(missing_tests(&[test("b", "t")], &BTreeSet::new()), ["t"]);
}
