package io.djltp.zoo.guide;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.translate.ArgumentsUtil;

import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.zoo.ModelFolder;
import io.djltp.zoo.ParallelBlockFactory;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

public class OwnModel {

    /** Found by its name: public, with a public constructor. */
    public static final class Factory extends ParallelBlockFactory {

        private static final long serialVersionUID = 1L;

        @Override
        protected Block newNetwork(Path folder, Map<String, ?> arguments) {
            long hidden = ArgumentsUtil.longValue(arguments, "hidden", 64);
            return new SequentialBlock()
                    .add(ColumnParallelLinear.builder().setUnits(hidden).build())
                    .add(Activation.reluBlock())
                    .add(RowParallelLinear.builder().setUnits(10).build());
        }

        @Override
        protected Shape[] getInputShapes(Map<String, ?> arguments) {
            return new Shape[] {new Shape(1, 16)};
        }
    }

    public static void main(String[] args) throws Exception {
        Path folder = Files.createTempDirectory("own-model");
        try (Model model = Model.newInstance("own-model")) {
            Block network = new Factory().newNetwork(folder, Map.of("hidden", "33"));
            network.initialize(model.getNDManager(), DataType.FLOAT32, new Shape(1, 16));
            model.setBlock(network); // here it would be trained
            ModelFolder.builder()
                    .setNetwork(network)
                    .setBlockFactory(Factory.class)
                    .optArgument("hidden", "33")
                    .build()
                    .save(folder);
        }
        System.out.print(Files.readString(folder.resolve("serving.properties")));
        for (int degree = 1; degree <= 3; degree++) {
            Criteria<NDList, NDList> criteria =
                    Criteria.builder()
                            .setTypes(NDList.class, NDList.class)
                            .optModelPath(folder)
                            .optArgument("tensor_parallel_degree", degree)
                            .optDevice(Device.cpu())
                            .build();
            try (ZooModel<NDList, NDList> model = criteria.loadModel();
                    Predictor<NDList, NDList> predictor = model.newPredictor();
                    NDManager manager = NDManager.newBaseManager()) {
                NDList output = predictor.predict(new NDList(manager.ones(new Shape(1, 16))));
                System.out.println(degree + ": " + output.head().sum().getFloat());
            }
        }
    }
}
