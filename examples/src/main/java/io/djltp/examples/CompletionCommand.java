package io.djltp.examples;

import picocli.AutoComplete;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Spec;

/** {@code tp completion}: a script that teaches a shell the commands and options of {@code tp}. */
@Command(
        name = "completion",
        description = {
            "Prints a script that lets bash complete commands and options.",
            "Use: source <(./tp completion)"
        },
        mixinStandardHelpOptions = true)
public final class CompletionCommand implements Runnable {

    @Spec private CommandSpec spec;

    private CompletionCommand() {}

    /** {@inheritDoc} */
    @Override
    public void run() {
        // "tp" stands for ./tp and any other path of it, too
        spec.commandLine().getOut().print(AutoComplete.bash("tp", spec.root().commandLine()));
        spec.commandLine().getOut().flush();
    }
}
