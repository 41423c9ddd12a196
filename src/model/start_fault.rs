//! Why Linux cannot start a file as a program.

use crate::text::quote::readable;

/// What is wrong with the file. The operator's files show it before the start, a rank supervisor afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartFault {
    /// It has no permission bit for it.
    NotExecutable,
    /// Its first line ends with a carriage return.
    LineEnds,
    /// It begins with a byte order mark.
    ByteOrderMark,
    /// It is a text without a first line that names an interpreter.
    NoInterpreter,
    /// It is a program for another system.
    OtherSystem,
}

impl StartFault {
    /// Returns what to do about it. `program` is the file as the user named it.
    pub fn hint(self, program: &str) -> String {
        let file = readable(program);
        match self {
            StartFault::NotExecutable => {
                let interpreter = if program.ends_with(".py") { "python" } else { "bash" };
                format!("chmod +x {file}, or start it with its interpreter: -- {interpreter} {file}")
            }
            StartFault::LineEnds => format!(
                "sed -i 's/\\r$//' {file} removes them (so does dos2unix); `*.sh text eol=lf` in .gitattributes keeps git from \
                 adding them"
            ),
            StartFault::ByteOrderMark => "save it as UTF-8 without a byte order mark".to_owned(),
            StartFault::NoInterpreter => format!("write #!/bin/sh as its first line, or start it with -- sh {file}"),
            StartFault::OtherSystem => "build it for Linux, in the image (hvdctl image build) or on a node".to_owned(),
        }
    }
}
