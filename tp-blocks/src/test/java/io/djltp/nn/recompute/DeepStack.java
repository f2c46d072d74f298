package io.djltp.nn.recompute;

import static io.djltp.testing.Blocks.attention;
import static io.djltp.testing.Blocks.mlp;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;

import io.djltp.nn.transformer.ParallelTransformerEncoderLayer;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Trains a deep stack of encoder layers, and prints what it needs: time, and memory of the system.
 */
public final class DeepStack {

    private static final int WARM_UP = 2;

    private DeepStack() {}

    /**
     * Trains.
     *
     * @param args the ranks, "kept" or "recomputed", layers, rows, tokens, width, hidden, steps
     *     that are timed, behind two that are not
     * @throws Exception if the training fails
     */
    public static void main(String[] args) throws Exception {
        int ranks = Integer.parseInt(args[0]);
        boolean recompute = args[1].equals("recomputed");
        int layers = Integer.parseInt(args[2]);
        Shape shape =
                new Shape(
                        Long.parseLong(args[3]), Long.parseLong(args[4]), Long.parseLong(args[5]));
        int steps = Integer.parseInt(args[7]);
        SequentialBlock stack = new SequentialBlock();
        for (int i = 0; i < layers; i++) {
            stack.add(layer(shape.get(2), Long.parseLong(args[6]), recompute));
        }
        try (Model model = Model.newInstance("stack", Device.cpu());
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(stack);
            DefaultTrainingConfig config = Configs.of(new HalfSquareLoss(), Configs.sgd(0.01f));
            try (Trainer trainer =
                    new TrainerKind(ParallelMode.TENSOR, ranks).open(model, config)) {
                trainer.initialize(shape);
                NDList data = new NDList(TrainingRun.random(manager, 1, shape.getShape()));
                NDList labels = new NDList(TrainingRun.random(manager, 2, shape.getShape()));
                long before = kibibytes("VmRSS");
                long start = System.nanoTime();
                for (int step = 0; step < WARM_UP + steps; step++) {
                    start = step == WARM_UP ? System.nanoTime() : start;
                    TrainingRun.step(trainer, data.head(), labels.head());
                }
                double seconds = (System.nanoTime() - start) / 1e9 / steps;
                long most = kibibytes("VmHWM") - before;
                System.out.printf("seconds=%.3f kib=%d%n", seconds, most);
            }
        }
    }

    private static ParallelTransformerEncoderLayer layer(long width, long hidden, boolean again) {
        return ParallelTransformerEncoderLayer.builder()
                .setAttention(attention(width, 4).build())
                .setMlp(mlp(width, hidden).optActivation(Activation.geluBlock()).build())
                .setNorm(() -> LayerNorm.builder().axis(2).build())
                .optPreNorm(true)
                .optRecompute(again)
                .build();
    }

    private static long kibibytes(String name) throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith(name + ":")) {
                return Long.parseLong(line.replaceAll("\\D", ""));
            }
        }
        throw new IllegalStateException(name);
    }
}
