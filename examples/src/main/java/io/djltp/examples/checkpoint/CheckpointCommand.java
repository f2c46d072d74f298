package io.djltp.examples.checkpoint;

import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** Looks into checkpoints, checks them and writes them for other ranks. */
@Command(
        name = "checkpoint",
        description = "Looks into checkpoints, checks them and writes them for other ranks.",
        subcommands = {InspectCommand.class, CheckCommand.class, ReshardCommand.class},
        mixinStandardHelpOptions = true)
public final class CheckpointCommand implements Runnable {

    @Spec private CommandSpec spec;

    /** Creates the command. */
    public CheckpointCommand() {}

    /** {@inheritDoc} */
    @Override
    public void run() {
        spec.commandLine().usage(spec.commandLine().getErr());
        throw new ParameterException(
                spec.commandLine(),
                "Choose what to do: "
                        + String.join(", ", spec.commandLine().getSubcommands().keySet()));
    }
}
