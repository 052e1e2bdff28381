// SPDX-License-Identifier: Apache-2.0
//! Translates EBNF to the Lark that `llguidance` reads, with the same language.
//!
//! The library's lexer divides the text into terminals before it parses, each as long as possible. EBNF has no
//! terminals. So a part without recursion becomes a terminal, as large as possible, because that is fast. A terminal is
//! taken apart again where the greedy lexer could lose texts: where it can continue with a character that may also
//! follow a shorter terminal. At worst terminals are single characters, which are exact.

use crate::ebnf::{Ebnf, Node};
use crate::ebnf_greed::{Greed, Work};
use crate::ebnf_plan::{Item, Plan, Symbol};
use std::collections::HashSet;
use std::fmt::Write;

pub fn to_lark(ebnf: &Ebnf) -> Result<String, String> {
    let mut plan = Plan::new(ebnf);
    let mut work = Work::new();
    loop {
        let greedy = Greed::new(&plan, &mut work)?.too_greedy()?;
        if greedy.is_empty() {
            return Ok(Writer::write(&plan));
        }
        for terminal in greedy {
            plan.take_apart(terminal);
        }
    }
}

/// Writes Lark without nesting, because the library's parser limits the depth.
struct Writer<'a> {
    plan: &'a Plan<'a>,
    out: String,
    names: HashSet<usize>,
    open_names: Vec<usize>,
    num_helpers: usize,
}

impl<'a> Writer<'a> {
    fn write(plan: &'a Plan<'a>) -> String {
        let mut writer = Writer {
            plan,
            out: String::new(),
            names: HashSet::new(),
            open_names: Vec::new(),
            num_helpers: 0,
        };
        let start = writer.item(&plan.start);
        writer.line("start", &start);
        for (rule, alternatives) in plan.rules.iter().enumerate() {
            let all: Vec<String> = alternatives.iter().map(|s| writer.sequence(s)).collect();
            writer.line(&format!("r{rule}"), &all.join(" | "));
        }
        for (terminal, node) in plan.terminals.iter().enumerate() {
            if !plan.apart.contains_key(&terminal) {
                let body = writer.body(node);
                writer.line(&format!("T{terminal}"), &body);
            }
        }
        while let Some(name) = writer.open_names.pop() {
            let body = writer.body(&plan.ebnf.rules[name]);
            writer.line(&format!("N{name}"), &body);
        }
        writer.out
    }

    fn line(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.out, "{name}: {body}");
    }

    fn sequence(&self, sequence: &[Item]) -> String {
        let all: Vec<String> = sequence.iter().map(|item| self.item(item)).collect();
        or_empty(all.join(" "))
    }

    fn item(&self, item: &Item) -> String {
        let name = match self.plan.resolve(item.symbol) {
            Symbol::Terminal(t) => format!("T{t}"),
            Symbol::Rule(r) => format!("r{r}"),
        };
        repeated(&name, item.least, item.most)
    }

    /// The body of a terminal.
    fn body(&mut self, node: &Node) -> String {
        match node {
            Node::Alt(all) => {
                let all: Vec<String> = all.iter().map(|n| self.concatenation(n)).collect();
                all.join(" | ")
            }
            _ => self.concatenation(node),
        }
    }

    fn concatenation(&mut self, node: &Node) -> String {
        match node {
            Node::Seq(all) => {
                let all: Vec<String> = all.iter().map(|n| self.factor(n)).collect();
                or_empty(all.join(" "))
            }
            _ => self.factor(node),
        }
    }

    fn factor(&mut self, node: &Node) -> String {
        match node {
            Node::Repeat(inner, least, most) => {
                let atom = self.atom(inner);
                repeated(&atom, *least, *most)
            }
            _ => self.atom(node),
        }
    }

    fn atom(&mut self, node: &Node) -> String {
        match node {
            Node::Text(text) if text.is_empty() => or_empty(String::new()),
            Node::Text(text) => format!("/{}/", text.chars().map(coded).collect::<String>()),
            Node::Class(class) => {
                let ranges = class.ranges.iter();
                let ranges: String = ranges
                    .map(|&(a, b)| format!("{}-{}", coded(a), coded(b)))
                    .collect();
                format!("/[{}{ranges}]/", if class.negated { "^" } else { "" })
            }
            Node::Rule(name) => {
                if self.names.insert(*name) {
                    self.open_names.push(*name);
                }
                format!("N{name}")
            }
            _ => {
                let name = format!("H{}", self.num_helpers);
                self.num_helpers += 1;
                let body = self.body(node);
                self.line(&name, &body);
                name
            }
        }
    }
}

fn coded(c: char) -> String {
    format!("\\x{{{:x}}}", u32::from(c))
}

fn or_empty(text: String) -> String {
    if text.is_empty() {
        "\"\"".into()
    } else {
        text
    }
}

fn repeated(atom: &str, least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (1, Some(1)) => atom.into(),
        (_, Some(0)) => or_empty(String::new()),
        (0, None) => format!("{atom}*"),
        (1, None) => format!("{atom}+"),
        (0, Some(1)) => format!("{atom}?"),
        (m, None) => format!("{atom}{{{m},}}"),
        (m, Some(n)) => format!("{atom}{{{m},{n}}}"),
    }
}
