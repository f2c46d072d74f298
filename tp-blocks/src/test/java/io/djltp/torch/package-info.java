/** What tests need of the precisions of libtorch. */
package io.djltp.torch;
