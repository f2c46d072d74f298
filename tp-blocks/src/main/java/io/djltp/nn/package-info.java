/** Contains the tensor-parallel layers. */
package io.djltp.nn;
