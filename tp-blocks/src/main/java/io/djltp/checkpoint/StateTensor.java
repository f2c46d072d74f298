package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;

import io.djltp.checkpoint.store.CutTensor;

import java.util.List;

/**
 * A tensor of the state.
 *
 * @param tensor what the whole is, and which ranges each part has
 * @param parameter the name of the parameter, if it is one or what the optimizer keeps of it:
 *     nothing else changes it; else {@code null}
 * @param arrays what each rank of this process has of it
 */
record StateTensor(CutTensor tensor, String parameter, List<NDArray> arrays) {}
