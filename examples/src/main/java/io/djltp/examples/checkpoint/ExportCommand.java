package io.djltp.examples.checkpoint;

import ai.djl.ndarray.types.DataType;

import io.djltp.checkpoint.Checkpoint;
import io.djltp.checkpoint.CheckpointException;
import io.djltp.examples.BadInputException;
import io.djltp.examples.TextFile;
import io.djltp.exchange.NameMapping;
import io.djltp.exchange.WeightExport;
import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;

/** {@code tp checkpoint export}: the weights of a checkpoint as safetensors of others. */
@Command(
        name = "export",
        description = {
            "Writes the weights of a checkpoint as model.safetensors, or as several files with an"
                    + " index, with names of your choice. What optimizers keep is left out."
        },
        mixinStandardHelpOptions = true)
final class ExportCommand implements Callable<Integer> {

    private static final int LISTED = 5; // of rules and parameters, in an error

    @Mixin private CheckpointChoice choice;

    @Option(names = "--out", required = true, description = "The folder for the files.")
    private Path target;

    @Option(
            names = "--names",
            description =
                    "File with the names, a line each: parameter = tensor. Without it parameters"
                            + " have their own paths. See docs/pretrained.md.")
    private @Nullable Path names;

    @Option(
            names = "--llama",
            split = ",",
            arity = "1..*",
            paramLabel = "HEADS,GROUPS",
            description =
                    "The names of Hugging Face's LlamaForCausalLM, with the numbers of query and of"
                            + " key/value heads.")
    private int[] llama;

    @Option(names = "--bfloat16", description = "Write bfloat16, half as large.")
    private boolean half;

    @Option(
            names = "--file-bytes",
            defaultValue = "5000000000",
            description = "The most bytes of a file of several tensors (${DEFAULT-VALUE}).")
    private long fileBytes;

    @Option(names = "--overwrite", description = "Replace files of these names that are there.")
    private boolean overwrite;

    @Spec private CommandSpec spec;

    private final PrintStream out = System.out;

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        WeightExport.Builder export = WeightExport.builder();
        try (Checkpoint checkpoint = choice.open()) {
            export.setMapping(mapping(checkpoint)).optFileBytes(fileBytes).optOverwrite(overwrite);
            if (half) {
                export.optDataType(DataType.BFLOAT16);
            }
            Path file = export.build().write(checkpoint, target);
            out.printf(
                    "The weights of step %d of %s are in %s%n",
                    checkpoint.getStep(), checkpoint.getPath(), file);
        } catch (CheckpointException | FileAlreadyExistsException | IllegalArgumentException e) {
            throw new BadInputException(e.getMessage(), e);
        }
        return 0;
    }

    private NameMapping mapping(Checkpoint checkpoint) throws IOException {
        if (llama != null && names != null) {
            throw new IllegalArgumentException(
                    "--names and --llama both say all names: leave one out");
        } else if (llama != null && llama.length != 2) {
            throw new IllegalArgumentException("--llama takes two numbers, such as 32,8");
        } else if (llama != null) {
            return NameMapping.llama(llama[0], llama[1]);
        }
        return names == null ? NameMapping.own() : NameMapping.own().with(table(names, checkpoint));
    }

    /** Returns the table of names. A rule that names nothing is probably misspelled. */
    private String table(Path file, Checkpoint checkpoint) throws IOException {
        String table = TextFile.read("--names", file);
        Set<String> paths = NameMapping.paths(checkpoint).keySet();
        NameMapping mapping = NameMapping.parse(table);
        List<String> unused = mapping.findUnused(paths);
        Errors.check(
                !unused.equals(mapping.findUnused(Set.of())),
                "--names %s names none of the parameters: %s. They are %s",
                file,
                unused.isEmpty() ? "it has no rules" : some(unused),
                some(List.copyOf(paths)));
        for (String rule : unused) {
            spec.commandLine()
                    .getErr()
                    .printf("tp: --names %s: no parameter is named by '%s'%n", file, rule);
        }
        return table;
    }

    private static String some(List<String> all) {
        return String.join(", ", all.subList(0, Math.min(LISTED, all.size())))
                + (all.size() > LISTED ? " and " + (all.size() - LISTED) + " more" : "");
    }
}
