package io.djltp.examples.checkpoint;

import com.google.gson.JsonElement;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CutTensor;
import io.djltp.cut.Cut;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;

/** {@code tp checkpoint inspect}: what is in a checkpoint. */
@Command(
        name = "inspect",
        description = "Shows what is in a checkpoint: files, tensors and how they are cut, values.",
        mixinStandardHelpOptions = true)
final class InspectCommand implements Callable<Integer> {

    private static final int WIDTH = 90; // of a value

    @Mixin private CheckpointChoice choice;

    private final PrintStream out = System.out;

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        try (Checkpoint checkpoint = choice.open()) {
            out.println(checkpoint.getPath());
            out.printf("step %d, mesh %s%n%n", checkpoint.getStep(), checkpoint.getMesh());
            for (String file : checkpoint.getFiles()) {
                Path path = checkpoint.getPath().resolve(file);
                out.printf("%-32s %,16d bytes%n", file, Files.size(path));
            }
            out.println();
            for (CutTensor tensor : checkpoint.getTensors().values()) {
                out.printf(
                        "%-40s %-8s %-16s %s%n",
                        tensor.name(), tensor.type(), tensor.shape(), describeCut(tensor));
            }
            out.println();
            for (Map.Entry<String, JsonElement> value : checkpoint.getValues().entrySet()) {
                String text = value.getValue().toString();
                out.printf(
                        "%-24s %s%n",
                        value.getKey(),
                        text.length() <= WIDTH ? text : text.substring(0, WIDTH) + " ...");
            }
        }
        return 0;
    }

    private static String describeCut(CutTensor tensor) {
        if (tensor.isWhole()) {
            return "whole";
        }
        Cut cut = tensor.cut();
        return "axis "
                + tensor.axis()
                + ": "
                + (cut.isConsecutive()
                        ? Arrays.stream(cut.getShardLengths())
                                .mapToObj(Long::toString)
                                .collect(Collectors.joining(" + "))
                        : cut.toString());
    }
}
