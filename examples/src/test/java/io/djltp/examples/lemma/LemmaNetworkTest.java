package io.djltp.examples.lemma;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;

import io.djltp.zoo.LemmaNetwork;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

public class LemmaNetworkTest {

    private static final int ROWS = 512;
    private static final int DIM = 32;

    @Test(timeOut = 60_000)
    public void featuresHaveTheirLengthAndPaddingDoesNotCount() {
        try (NDManager manager = NDManager.newBaseManager()) {
            Block body = body(manager);
            NDArray features = forward(body, manager, new int[] {5, 9, 0, 0, 7, 7, 7, 0}, 4);
            Assert.assertEquals(features.getShape(), new Shape(2, DIM));
            float[] lengths = features.square().sum(new int[] {1}).sqrt().toFloatArray();
            Assert.assertEquals(lengths[0], LemmaNetwork.FEATURE_LENGTH, 1e-3f);
            Assert.assertEquals(lengths[1], LemmaNetwork.FEATURE_LENGTH, 1e-3f);
            NDArray narrow = forward(body, manager, new int[] {5, 9}, 2);
            Assert.assertEquals(
                    features.get(0).toFloatArray(), narrow.get(0).toFloatArray(), 1e-4f);
        }
    }

    @Test(timeOut = 60_000)
    public void resultsBelongToTheInput() {
        try (NDManager manager = NDManager.newBaseManager()) {
            Block body = body(manager);
            try (NDManager scope = manager.newSubManager()) {
                NDArray features = forward(body, scope, new int[] {1, 2, 3, 0}, 4);
                Assert.assertSame(features.getManager(), scope);
            }
        }
    }

    @Test(timeOut = 60_000)
    public void threadsShareOneBlock() throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(4);
        try (NDManager manager = NDManager.newBaseManager()) {
            Block body = body(manager);
            List<Future<float[]>> results = new ArrayList<>();
            for (int i = 0; i < 40; i++) {
                int row = 1 + i % 4;
                results.add(
                        threads.submit(
                                () -> {
                                    try (NDManager scope = manager.newSubManager()) {
                                        int[] rows = {row, row + 4, 0};
                                        return forward(body, scope, rows, 3).toFloatArray();
                                    }
                                }));
            }
            for (int i = 4; i < 40; i++) {
                Assert.assertEquals(results.get(i).get(), results.get(i % 4).get());
            }
        } finally {
            threads.shutdownNow();
        }
    }

    private static Block body(NDManager manager) {
        Block body = LemmaNetwork.body(ROWS, DIM);
        body.initialize(manager, DataType.FLOAT32, new Shape(2, 4));
        return body;
    }

    private static NDArray forward(Block body, NDManager manager, int[] rows, int width) {
        NDArray indices = manager.create(rows, new Shape(rows.length / width, width));
        ParameterStore store = new ParameterStore(manager, false);
        return body.forward(store, new NDList(indices), false).singletonOrThrow();
    }
}
