package io.djltp.examples.checkpoint;

import com.google.gson.JsonElement;

import io.djltp.checkpoint.Checkpoint;
import io.djltp.checkpoint.CheckpointException;
import io.djltp.checkpoint.CutTensor;
import io.djltp.cut.Cut;
import io.djltp.examples.BadInputException;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;

/** Looks into checkpoints, checks them and writes them for other ranks. */
@Command(
        name = "checkpoint",
        description = "Looks into checkpoints, checks them and writes them for other ranks.",
        subcommands = {
            CheckpointCommand.Inspect.class,
            CheckpointCommand.Verify.class,
            CheckpointCommand.Reshard.class,
            ExportCommand.class
        },
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

    /** {@code tp checkpoint inspect}: what is in a checkpoint. */
    @Command(
            name = "inspect",
            description =
                    "Shows what is in a checkpoint: files, tensors and how they are cut, values."
                            + " Of a folder, in the newest.",
            mixinStandardHelpOptions = true)
    static final class Inspect implements Callable<Integer> {

        private static final int WIDTH = 90; // of a value

        @Mixin private CheckpointChoice choice;

        private final PrintStream out = System.out;

        /** {@inheritDoc} */
        @Override
        public Integer call() throws IOException {
            try (Checkpoint checkpoint = choice.open()) {
                out.println(checkpoint.getPath());
                out.printf("step %d, mesh %s%n%n", checkpoint.getStep(), checkpoint.getMesh());
                List<String[]> files = new ArrayList<>();
                for (String file : checkpoint.getFiles()) {
                    long bytes = Files.size(checkpoint.getPath().resolve(file));
                    files.add(new String[] {file, String.format("%,16d bytes", bytes)});
                }
                print(files);
                out.println();
                print(checkpoint.getTensors().values().stream().map(Inspect::columns).toList());
                out.println();
                print(
                        checkpoint.getValues().entrySet().stream()
                                .map(each -> new String[] {each.getKey(), shown(each.getValue())})
                                .toList());
            }
            return 0;
        }

        /** Prints rows in columns that are as wide as the longest of their texts. */
        private void print(List<String[]> rows) {
            int[] widths = new int[rows.isEmpty() ? 0 : rows.get(0).length];
            for (String[] row : rows) {
                Arrays.setAll(widths, i -> Math.max(widths[i], row[i].length()));
            }
            for (String[] row : rows) {
                StringBuilder line = new StringBuilder();
                for (int i = 0; i < row.length; i++) {
                    line.append(row[i]).append(" ".repeat(widths[i] - row[i].length() + 2));
                }
                out.println(line.toString().stripTrailing());
            }
        }

        private static String shown(JsonElement value) {
            String text = value.toString();
            return text.length() <= WIDTH ? text : text.substring(0, WIDTH) + " ...";
        }

        private static String[] columns(CutTensor tensor) {
            Cut ranges = tensor.cut();
            String cut = ranges == null ? "whole" : describe(tensor.axis(), ranges);
            return new String[] {
                tensor.name(), tensor.type().toString(), tensor.shape().toString(), cut
            };
        }

        private static String describe(int axis, Cut cut) {
            String lengths =
                    Arrays.stream(cut.getShardLengths())
                            .mapToObj(Long::toString)
                            .collect(Collectors.joining(" + "));
            return "axis " + axis + ": " + (cut.isConsecutive() ? lengths : cut);
        }
    }

    /** {@code tp checkpoint verify}: whether every byte is as it was written. */
    @Command(
            name = "verify",
            description =
                    "Reads every byte of all checkpoints of a folder, or of one, and compares the"
                            + " checksums. Ends with 0 if all are as they were written, or says"
                            + " which bytes of which file are not.",
            mixinStandardHelpOptions = true)
    static final class Verify implements Callable<Integer> {

        @Mixin private CheckpointChoice choice;

        private final PrintStream out = System.out;

        /** {@inheritDoc} */
        @Override
        public Integer call() throws IOException {
            int status = 0;
            int whole = 0;
            List<Path> all = choice.all();
            for (Path path : all) {
                try (Checkpoint checkpoint = CheckpointChoice.open(path)) {
                    List<String> damages = checkpoint.verify();
                    damages.forEach(out::println);
                    out.printf(
                            damages.isEmpty() ? "%s is whole: %,d bytes read%n" : "%s is damaged%n",
                            path,
                            checkpoint.getBytesRead());
                    whole += damages.isEmpty() ? 1 : 0;
                    status = Math.max(status, damages.isEmpty() ? 0 : 1);
                } catch (BadInputException e) { // what it is made of cannot even be read
                    if (all.size() == 1) {
                        throw e;
                    }
                    out.println(e.getMessage());
                    status = 2;
                }
            }
            if (all.size() > 1) {
                out.printf("%d of %d checkpoints are whole%n", whole, all.size());
            }
            return status;
        }
    }

    /** {@code tp checkpoint reshard}: a checkpoint in another number of files. */
    @Command(
            name = "reshard",
            description = {
                "Writes a checkpoint for another number of tensor-parallel ranks, one shard of a"
                        + " tensor at a time.",
                "A training goes on at any number of ranks without it: what a rank needs of a"
                        + " tensor then lies in one file."
            },
            mixinStandardHelpOptions = true)
    static final class Reshard implements Callable<Integer> {

        private static final int MOST_RANKS = 1024;

        @Mixin private CheckpointChoice choice;

        @Option(names = "--ranks", required = true, description = "The number of ranks.")
        private int ranks;

        @Option(names = "--out", required = true, description = "The folder for the checkpoint.")
        private Path target;

        private final PrintStream out = System.out;

        /** {@inheritDoc} */
        @Override
        public Integer call() throws IOException {
            if (ranks < 1 || ranks > MOST_RANKS) {
                throw new BadInputException("--ranks %s: 1 to %s", ranks, MOST_RANKS);
            }
            try (Checkpoint from = choice.open();
                    Checkpoint again = from.reshard(target, ranks)) {
                out.printf(
                        "%s, written in %s, is in %s in %s%n",
                        from.getPath(), parts(from), parts(again), again.getPath());
            } catch (CheckpointException e) {
                throw new BadInputException(e.getMessage(), e);
            }
            return 0;
        }

        private static String parts(Checkpoint checkpoint) {
            int number = checkpoint.getFiles().size();
            return number == 1 ? "1 part" : number + " parts";
        }
    }
}
