package io.djltp.nn.transformer;

import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.translate.NoopTranslator;

import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.List;

/** A layer is saved as itself at any number of ranks, and goes on at any other. */
public class LayersAreSavedTest {

    private static final Shape INPUT = new Shape(4, 5, 12);

    @Test(timeOut = 60_000)
    public void atOneNumberOfRanksAndLoadedAtAnother() throws Exception {
        Path folder = TestFolder.create();
        float[] expected;
        try (Model model = model()) {
            train(PLAIN, model, folder, 0, 3);
            expected = predict(model);
        }
        try (Model model = model()) {
            train(TENSOR_4, model, folder, 0, 1);
        }
        for (int ranks = 1; ranks <= 3; ranks++) {
            try (Model model = model()) {
                model.load(folder, "step1");
                train(new TrainerKind(ParallelMode.TENSOR, ranks), model, folder, 1, 3);
                ArrayAssert.assertClose(predict(model), expected, 1e-5, "in the model");
            }
            try (Model model = model()) {
                model.load(folder, "step3");
                ArrayAssert.assertClose(predict(model), expected, 1e-5, "in the file");
            }
        }
    }

    /** By which the weights of other libraries find their place. */
    @Test(timeOut = 60_000)
    public void theNamesOfParameters() {
        try (Model model = model();
                NDManager manager = NDManager.newBaseManager()) {
            model.getBlock().initialize(manager, DataType.FLOAT32, INPUT);
            Assert.assertEquals(
                    model.getBlock().getParameters().keys(),
                    List.of(
                            "01PositionEmbedding_weight",
                            "02ParallelTransformerDecoderLayer_01attention_01query_weight",
                            "02ParallelTransformerDecoderLayer_01attention_02key_weight",
                            "02ParallelTransformerDecoderLayer_01attention_03value_weight",
                            "02ParallelTransformerDecoderLayer_01attention_04output_weight",
                            "02ParallelTransformerDecoderLayer_02attentionNorm_weight",
                            "02ParallelTransformerDecoderLayer_03mlp_01gateUp_weight",
                            "02ParallelTransformerDecoderLayer_03mlp_03down_weight",
                            "02ParallelTransformerDecoderLayer_04mlpNorm_weight"));
        }
    }

    private static Model model() {
        RotaryEmbedding rotary = RotaryEmbedding.builder().build();
        Model model = Model.newInstance("net", Device.cpu());
        model.setBlock(
                sequence(
                        new PositionEmbedding(7),
                        ParallelTransformerDecoderLayer.llama(12, 6, 2, 7, rotary, 1e-5f)));
        return model;
    }

    /** Trains from one step to another, and saves while the ranks hold the weights. */
    private static void train(TrainerKind kind, Model model, Path folder, int from, int to)
            throws Exception {
        Engine.getInstance().setRandomSeed(7);
        DefaultTrainingConfig config = Configs.of(new HalfSquareLoss(), Configs.sgd(0.1f));
        try (Trainer trainer = kind.open(model, config);
                NDManager manager = NDManager.newBaseManager()) {
            trainer.initialize(INPUT);
            for (int step = from; step < to; step++) {
                NDArray data = TrainingRun.random(manager, step, INPUT.getShape());
                NDArray labels = TrainingRun.random(manager, 50 + step, INPUT.getShape());
                TrainingRun.step(trainer, data, labels);
            }
            model.save(folder, "step" + to);
        }
    }

    private static float[] predict(Model model) throws Exception {
        try (NDManager manager = NDManager.newBaseManager();
                Predictor<NDList, NDList> predictor = model.newPredictor(new NoopTranslator())) {
            NDArray data = TrainingRun.random(manager, 99, INPUT.getShape());
            return predictor.predict(new NDList(data)).head().toFloatArray();
        }
    }
}
