"""Train a structured predictor under a group-sparsity penalty. The same program is installed as `structsparse train`.

python train.py                                     entities on the planted corpus, under a group lasso
python train.py task=chunking data=conll2000 reg=l1
python train.py --help                              all options
"""

import sys

from structsparse.cli.train import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
