package io.djltp.examples;

import io.djltp.examples.bench.BenchCommand;
import io.djltp.examples.bench.WorkerFailedException;
import io.djltp.examples.checkpoint.CheckpointCommand;
import io.djltp.examples.classes.EvaluateCommand;
import io.djltp.examples.classes.ExportCommand;
import io.djltp.examples.classes.PredictCommand;
import io.djltp.examples.doctor.DoctorCommand;
import io.djltp.examples.embed.EmbedCommand;
import io.djltp.examples.finetune.FinetuneCommand;
import io.djltp.examples.generate.GenerateCommand;
import io.djltp.examples.generate.ServeCommand;
import io.djltp.examples.lm.LmCommand;
import io.djltp.examples.plan.PlanCommand;
import io.djltp.examples.train.TrainCommand;
import io.djltp.examples.verify.VerifyCommand;
import io.djltp.job.JobFailedException;
import io.djltp.rank.RankFailedException;
import io.djltp.torch.NativeAllocator;

import picocli.AutoComplete;
import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;
import picocli.CommandLine.TypeConversionException;

import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Set;

/** The {@code tp} command: tensor parallelism for DJL, to be tried out. */
@Command(
        name = "tp",
        description = "Tensor parallelism for the Deep Java Library.",
        mixinStandardHelpOptions = true,
        version = "DJL Tensor Parallel 0.1.0")
public final class Tp implements Runnable {

    /** What the user has typed to call this. */
    public static final String NAME = System.getProperty("tp.command", "./tp");

    /** In the order of the help. */
    private static final List<Class<?>> COMMANDS =
            List.of(
                    TrainCommand.class,
                    PredictCommand.class,
                    EvaluateCommand.class,
                    ExportCommand.class,
                    EmbedCommand.class,
                    LmCommand.class,
                    FinetuneCommand.class,
                    GenerateCommand.class,
                    ServeCommand.class,
                    VerifyCommand.class,
                    DoctorCommand.class,
                    BenchCommand.class,
                    PlanCommand.class,
                    AutoComplete.GenerateCompletion.class,
                    CheckpointCommand.class,
                    CommandLine.HelpCommand.class);

    /** Those that speak of the others. */
    private static final Set<Class<?>> OVERVIEWS =
            Set.of(AutoComplete.GenerateCompletion.class, CommandLine.HelpCommand.class);

    @Spec private CommandSpec spec;

    private Tp() {}

    /**
     * Runs the command and ends the process: with status 0, 1 after a failure or when the output
     * cannot be written, or 2 after bad input.
     *
     * @param args the arguments
     */
    public static void main(String[] args) {
        NativeAllocator.keepFreedArrays();
        int status = execute(args);
        if (System.out.checkError()) { // a PrintStream throws nothing, it only takes note
            System.err.println(
                    "tp: not all of the output could be written: is the disk full, or has the"
                            + " program that reads it ended?");
            status = Math.max(status, CommandLine.ExitCode.SOFTWARE);
        }
        System.exit(status);
    }

    /**
     * Runs the command.
     *
     * @param args the arguments
     * @return the exit status
     */
    public static int execute(String... args) {
        return commandLine(args)
                .registerConverter(Path.class, Tp::path)
                .setCaseInsensitiveEnumValuesAllowed(true)
                .setExecutionExceptionHandler(Tp::report)
                .setParameterExceptionHandler(Tp::refuse)
                .execute(args);
    }

    /**
     * Returns a command line with the command that is asked for: to read the options of all takes
     * longer than the virtual machine takes to start.
     */
    private static CommandLine commandLine(String... args) {
        CommandLine line = new CommandLine(new Tp());
        for (Class<?> command : COMMANDS) {
            boolean asked = args.length > 0 && nameOf(command).equals(args[0]);
            if (asked && !OVERVIEWS.contains(command)) {
                return line.addSubcommand(command);
            }
        }
        COMMANDS.forEach(line::addSubcommand);
        return line;
    }

    private static String nameOf(Class<?> command) {
        return command.getAnnotation(Command.class).name();
    }

    /** {@inheritDoc} */
    @Override
    public void run() {
        spec.commandLine().usage(spec.commandLine().getErr());
        throw new ParameterException(spec.commandLine(), "Choose a command");
    }

    /**
     * Prints one line for a wrong option, and where the right ones are: the usage would hide it.
     */
    private static int refuse(ParameterException e, String[] args) {
        CommandLine command = e.getCommandLine();
        // of a constant, picocli lists the name and what it prints as
        String message =
                String.valueOf(e.getMessage()).replaceAll("\\b[A-Z]+_[A-Z_]+, (?=[a-z]+-)", "");
        command.getErr().println("tp: " + message);
        CommandLine.UnmatchedArgumentException.printSuggestions(e, command.getErr());
        String name = command.getCommandSpec().qualifiedName().replaceFirst("tp", "");
        command.getErr().printf("Try: %s%s --help%n", NAME, name);
        return command.getCommandSpec().exitCodeOnInvalidInput();
    }

    /** An empty name would be that of the folder in which the command was called. */
    private static Path path(String name) {
        if (name.isBlank()) {
            throw new TypeConversionException("it is empty: name a file or a folder");
        }
        return Path.of(name);
    }

    /**
     * Returns a number with its noun: {@code 1 row}, {@code 2,000 rows}.
     *
     * @param number the number
     * @param noun the noun of one
     * @return both
     */
    public static String count(long number, String noun) {
        return String.format(Locale.ROOT, "%,d %s%s", number, noun, number == 1 ? "" : "s");
    }

    private static boolean isEndOfJob(Exception e) {
        return e instanceof JobFailedException
                || e instanceof RankFailedException && ((RankFailedException) e).isRemote();
    }

    /**
     * Prints one line for bad input and for what cannot be read or written, and the whole trace of
     * what should not have happened.
     */
    private static int report(
            Exception e, CommandLine command, CommandLine.ParseResult parseResult) {
        if (e instanceof BadInputException) {
            command.getErr().println("tp: " + e.getMessage());
            return CommandLine.ExitCode.USAGE;
        }
        Throwable thrown = e instanceof RankFailedException ? e.getCause() : e; // where it failed
        if (e instanceof WorkerFailedException) {
            // the process has printed its trace itself
            command.getErr().println("tp: " + e.getMessage());
        } else if (isEndOfJob(e)) {
            // what went wrong is in another process, which prints its trace
            command.getErr().println("tp: the job has ended: " + e.getMessage());
        } else if (BadInputException.isOfFullDisk(e)) {
            command.getErr().println("tp: a disk is full: " + e.getMessage() + ". Make room");
        } else if (thrown instanceof IOException) {
            // the message of others, such as NoSuchFileException, may be no more than a name
            boolean told = thrown.getClass() == IOException.class;
            command.getErr().println("tp: " + (told ? thrown.getMessage() : thrown));
        } else {
            e.printStackTrace(command.getErr());
        }
        return CommandLine.ExitCode.SOFTWARE;
    }
}
