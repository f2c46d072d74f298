package io.djltp.examples.bench;

import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** Measures how fast and how large training steps are, beside stock DJL and beside a floor. */
@Command(
        name = "bench",
        description =
                "Measures a step of this library, of stock DJL, and the least that the machine"
                        + " could take, in turns in one run, each in a process of its own. Wants a"
                        + " machine with nothing else to do.",
        subcommands = {
            HeadCommand.class,
            LayerCommand.class,
            TransformerCommand.class,
            CollectiveCommand.class,
            StepCommand.class
        },
        mixinStandardHelpOptions = true)
public final class BenchCommand implements Runnable {

    @Spec private CommandSpec spec;

    /** Creates the command. */
    public BenchCommand() {}

    /** {@inheritDoc} */
    @Override
    public void run() {
        spec.commandLine().usage(spec.commandLine().getErr());
        throw new ParameterException(
                spec.commandLine(),
                "Choose what to measure: head, layer, transformer, collective or step");
    }
}
