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
import java.util.Arrays;
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
            AlignedRows files = new AlignedRows();
            for (String file : checkpoint.getFiles()) {
                long bytes = Files.size(checkpoint.getPath().resolve(file));
                files.add(file, String.format("%,16d bytes", bytes));
            }
            files.print(out);
            out.println();
            AlignedRows tensors = new AlignedRows();
            for (CutTensor tensor : checkpoint.getTensors().values()) {
                tensors.add(
                        tensor.name(),
                        tensor.type().toString(),
                        tensor.shape().toString(),
                        describeCut(tensor));
            }
            tensors.print(out);
            out.println();
            AlignedRows values = new AlignedRows();
            checkpoint
                    .getValues()
                    .entrySet()
                    .forEach(e -> values.add(e.getKey(), shown(e.getValue())));
            values.print(out);
        }
        return 0;
    }

    private static String shown(JsonElement value) {
        String text = value.toString();
        return text.length() <= WIDTH ? text : text.substring(0, WIDTH) + " ...";
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
