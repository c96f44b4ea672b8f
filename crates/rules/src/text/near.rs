//! The known word that a wrong one resembles.

/// Longer words resemble none.
const LONGEST: usize = 24;

/// The word among `known` that differs least from `word`: by a third of its letters at most.
pub(crate) fn nearest(word: &str, known: &[&'static str]) -> Option<&'static str> {
    let letters: Vec<char> = word.to_lowercase().chars().take(LONGEST + 1).collect();
    let most = (letters.len() / 3).max(1);
    if letters.is_empty() || letters.len() > LONGEST {
        return None;
    }
    let apart = known.iter().map(|known| (distance(&letters, known), *known));
    apart.filter(|(apart, _)| *apart <= most).min_by_key(|(apart, _)| *apart).map(|(_, word)| word)
}

/// How many letters to add, remove, change or swap with their neighbours.
fn distance(a: &[char], b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let changed = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + changed);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}
