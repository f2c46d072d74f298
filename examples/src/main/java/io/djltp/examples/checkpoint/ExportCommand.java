package io.djltp.examples.checkpoint;

import ai.djl.ndarray.types.DataType;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.examples.BadInputException;
import io.djltp.exchange.NameMapping;
import io.djltp.exchange.WeightExport;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
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

    @Mixin private CheckpointChoice choice;

    @Option(names = "--out", required = true, description = "The folder for the files.")
    private Path target;

    @Option(
            names = "--names",
            description =
                    "File with the names, a line each: parameter = tensor. Without it parameters"
                            + " have their own paths. See docs/exchange.md.")
    private Path names;

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

    private final PrintStream out = System.out;

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        WeightExport.Builder export = WeightExport.builder();
        try (Checkpoint checkpoint = choice.open()) {
            export.setMapping(mapping()).optFileBytes(fileBytes).optOverwrite(overwrite);
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

    private NameMapping mapping() throws IOException {
        NameMapping mapping = NameMapping.own();
        if (llama != null && llama.length == 2) {
            mapping = NameMapping.llama(llama[0], llama[1]);
        } else if (llama != null) {
            throw new IllegalArgumentException("--llama takes two numbers, such as 32,8");
        }
        return names == null ? mapping : mapping.with(Files.readString(names));
    }
}
