package io.djltp.zoo.guide;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.listener.TrainingListener;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;
import io.djltp.zoo.PretrainedClassifier;

public class NewHead {

    public static void main(String[] args) throws Exception {
        try (Model pretrained = Model.newInstance("pretrained", Device.cpu());
                Model model = Model.newInstance("classifier", Device.cpu())) {
            // any block with values: criteria.loadModel().getBlock() of a zoo or a file
            Block backbone =
                    new SequentialBlock()
                            .add(Linear.builder().setUnits(32).build())
                            .add(Activation.reluBlock())
                            .add(Linear.builder().setUnits(10).build());
            backbone.initialize(pretrained.getNDManager(), DataType.FLOAT32, new Shape(1, 8));

            model.setBlock(
                    PretrainedClassifier.builder()
                            .setBackbone(backbone)
                            .optWithoutLast(1) // its own head of 10 classes
                            .setClasses(5000)
                            .build());
            DefaultTrainingConfig training =
                    new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                            .optDevices(new Device[] {Device.cpu()})
                            .addTrainingListeners(TrainingListener.Defaults.basic());
            ParallelConfig ranks =
                    ParallelConfig.builder().setMode(ParallelMode.MIXED).setRanks(2).build();
            try (Trainer trainer = new ParallelTrainer(model, training, ranks);
                    NDManager manager = NDManager.newBaseManager()) {
                NDArray labels = manager.arange(64).mul(70);
                ArrayDataset data =
                        new ArrayDataset.Builder()
                                .setData(manager.randomNormal(new Shape(64, 8)))
                                .optLabels(labels)
                                .setSampling(16, false)
                                .build();
                trainer.initialize(new Shape(16, 8));
                EasyTrain.fit(trainer, 20, data, null);
                System.out.println("loss " + trainer.getTrainingResult().getTrainLoss());
            }
        }
    }
}
