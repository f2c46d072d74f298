/** Contains tests of the updates of parameters. */
package io.djltp.optimizer;
